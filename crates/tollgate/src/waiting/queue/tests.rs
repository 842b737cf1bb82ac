use super::*;

use proptest::prelude::*;

const UNIT: (u64, u32) = (1, 1);

fn waiter(client: u64, arrival: u64) -> Waiter {
    Waiter { client, arrival }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn only_one_request_has_the_turn_and_it_passes_on() {
    let (mut queue, start) = (Queue::default(), Instant::now());
    let (first, second) = (waiter(1, 0), waiter(1, 1));
    assert_eq!(
        queue.join(first, UNIT, start + millis(10), "first", start),
        Some("first")
    );
    assert_eq!(queue.join(second, UNIT, start, "second", start), None);
    assert_eq!(queue.turn(first, start).0, Turn::At(start + millis(10)));
    assert_eq!(queue.turn(second, start).0, Turn::Other);
    let now = start + millis(10);
    assert_eq!(queue.turn(first, now).0, Turn::Ask);
    assert_eq!(queue.turn(second, now).0, Turn::Other);
    let woken = queue.admitted(first, |_| now + millis(5), now);
    assert_eq!(woken, Some("second"));
    assert_eq!(queue.turn(second, now).0, Turn::At(now + millis(5)));
    assert_eq!(queue.leave(second, None, now), None);
    assert!(queue.is_empty());
}

#[test]
fn line_that_is_due_earlier_takes_the_turn() {
    let (mut queue, start) = (Queue::default(), Instant::now());
    let (slow, quick) = (waiter(1, 0), waiter(2, 1));
    queue.join(slow, UNIT, start + millis(50), "slow", start);
    let woken = queue.join(quick, UNIT, start + millis(20), "quick", start);
    assert_eq!(woken, Some("quick"));
    assert_eq!(queue.turn(slow, start).0, Turn::Other);
    let now = start + millis(20);
    assert_eq!(queue.turn(quick, now).0, Turn::Ask);
    assert_eq!(queue.admitted(quick, |_| now, now), Some("slow"));
}

#[test]
fn due_lines_ask_by_weight() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    for arrival in 0..60 {
        queue.join(waiter(1, arrival), (1, 1), now, 1, now);
        queue.join(waiter(5, 100 + arrival), (1, 5), now, 5, now);
    }
    let mut served = [0_u32; 6];
    for _ in 0..60 {
        let asks = [1, 5].into_iter().find_map(|client| {
            let line = queue.lines.get(&client)?;
            let head = waiter(client, line.head()?.arrival);
            (queue.turn(head, now).0 == Turn::Ask).then_some(head)
        });
        let head = asks.unwrap();
        served[usize::try_from(head.client).unwrap()] += 1;
        queue.admitted(head, |_| now, now);
    }
    assert_eq!((served[1], served[5]), (10, 50));
}

#[test]
fn queue_rests_after_denials_in_a_row() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    for client in 0..20 {
        queue.join(waiter(client, client), UNIT, now, client, now);
    }
    let mut asked = 0;
    for round in 1..=3_u32 {
        let now = now + millis(10) * (round - 1);
        while let Some(head) = (0..20)
            .map(|client| waiter(client, client))
            .find(|it| queue.turn(*it, now).0 == Turn::Ask)
        {
            asked += 1;
            queue.denied(head, now + millis(1000), millis(10), now);
        }
        assert_eq!(asked, round * MAX_DENIED);
    }
}

#[test]
fn request_that_joins_late_takes_its_place_by_arrival() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    for arrival in [0, 3, 1, 2] {
        queue.join(waiter(1, arrival), (1 << arrival, 1), now, arrival, now);
    }
    // The units behind the first request.
    let ahead_of = |queue: &Queue<u64>, arrival| queue.ahead_of(waiter(1, arrival));
    assert_eq!(ahead_of(&queue, 0), None);
    assert_eq!(ahead_of(&queue, 2), Some((now, 2)));
    assert_eq!(ahead_of(&queue, 3), Some((now, 2 + 4)));
    queue.leave(waiter(1, 1), None, now);
    assert_eq!(ahead_of(&queue, 3), Some((now, 4)));
    for arrival in [0, 2, 3] {
        let head = waiter(1, arrival);
        assert_eq!(queue.turn(head, now).0, Turn::Ask);
        queue.admitted(head, |_| now, now);
    }
    assert!(queue.is_empty());
}

/// A step of the random test.
#[derive(Clone, Debug)]
enum Step {
    Join(u64),
    Leave(usize),
    Pass(u64),
    /// The request with the turn asks, if it may. The store admits it, or denies it for some milliseconds.
    Ask(Option<u64>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..5_u64).prop_map(Step::Join),
        1 => (0..64_usize).prop_map(Step::Leave),
        2 => (0..20_u64).prop_map(Step::Pass),
        4 => prop::option::of(1..40_u64).prop_map(Step::Ask),
    ]
}

proptest! {
    #[test]
    fn someone_always_has_the_turn_and_clients_stay_in_order(steps in prop::collection::vec(step(), 1..200)) {
        let mut queue = Queue::default();
        let mut now = Instant::now();
        let mut waiting: Vec<Waiter> = Vec::new();
        let mut arrivals = 0;
        let asks = |queue: &mut Queue<Waiter>, waiting: &[Waiter], now| {
            let all = waiting.iter().copied();
            let asking: Vec<Waiter> = all.filter(|it| queue.turn(*it, now).0 == Turn::Ask).collect();
            assert!(asking.len() <= 1);
            asking.first().copied()
        };
        for step in steps {
            match step {
                Step::Join(client) => {
                    let it = waiter(client, arrivals);
                    arrivals += 1;
                    waiting.push(it);
                    queue.join(it, (1, 1 + u32::try_from(client).unwrap()), now + millis(client), it, now);
                }
                Step::Leave(place) if !waiting.is_empty() => {
                    let it = waiting.remove(place % waiting.len());
                    queue.leave(it, None, now);
                }
                Step::Leave(_) => {}
                Step::Pass(span) => now += millis(span),
                Step::Ask(denied) => if let Some(it) = asks(&mut queue, &waiting, now) {
                    // The first of its client.
                    let first = waiting.iter().find(|other| other.client == it.client);
                    prop_assert_eq!(first, Some(&it));
                    match denied {
                        Some(span) => {
                            queue.denied(it, now + millis(span), millis(3), now);
                        }
                        None => {
                            waiting.retain(|other| *other != it);
                            queue.admitted(it, |units| now + millis(units), now);
                        }
                    }
                },
            }
            prop_assert_eq!(queue.len(), waiting.len());
            prop_assert_eq!(queue.turn.is_some(), !waiting.is_empty());
            let holder = queue.turn.map(|holder| holder.waiter);
            prop_assert!(holder.is_none_or(|it| waiting.contains(&it)));
        }
        // Everybody is served if the store admits.
        while !waiting.is_empty() {
            now += millis(50);
            let it = asks(&mut queue, &waiting, now);
            prop_assert!(it.is_some());
            waiting.retain(|other| Some(*other) != it);
            queue.admitted(it.unwrap(), |units| now + millis(units), now);
        }
        prop_assert!(queue.is_empty() && queue.due.is_empty() && queue.later.is_empty() && queue.lines.is_empty());
    }
}
