//! Fair shares through the whole limiter, on a manual clock: who gets how much of a bucket under contention.

#![allow(clippy::panic, clippy::unwrap_used)] // Helpers of tests fail as tests do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate::algorithms::fair::Client;
use tollgate::{
    Ask, Attributes, Clock, Config, Limiter, ManualClock, MemoryStore, Remembered, Span, Time,
    Traced,
};
use tollgate_redis::{Address, ClockSource, Options, RedisStore, Servers};
use tollgate_rig::Redis;

const START: Time = Time::from_micros(1_800_000_000_000_000);
const BUCKET: &str = "algorithm: token-bucket, capacity: 100, refill: 100/s";

type MemoryLimiter = Limiter<Traced<MemoryStore<ManualClock>>>;

fn config(text: &str) -> Config {
    let text = format!("version: 1\n{text}");
    let config = tollgate_config::parse("rules.yaml", &text, &|_| None);
    config.unwrap_or_else(|error| panic!("{error}"))
}

fn limiter(text: &str) -> (MemoryLimiter, ManualClock) {
    let clock = ManualClock::at(START);
    let limiter = Limiter::with_clock(&config(text), clock.clone());
    (limiter.unwrap(), clock)
}

/// Clients are counted by rule, and do not compete with those of other buckets. So the share is at least the one told.
#[test]
fn share_in_words_is_a_lower_bound_if_a_rule_has_several_buckets() {
    for (per, told) in [
        ("", "guaranteed share now about 50.00%: weight 1 of about 2"),
        (
            "per: [region], ",
            "guaranteed share now at least about 50.00%: weight 1 of about 2 in all buckets of the rule together",
        ),
    ] {
        let rule = format!("rules: [{{ id: pool, {per}{BUCKET}, fair: {{ per: [tenant] }} }}]");
        let (limiter, clock) = limiter(&rule);
        for (tenant, region) in [("a", "north"), ("b", "south")] {
            let attributes = Attributes::from([("tenant", tenant), ("region", region)]);
            assert!(limiter.check_now(&attributes).is_allowed());
        }
        let fair = limiter.metrics().fair(clock.now());
        let client = Client {
            id: 7,
            lane: 0,
            weight: 1,
        };
        assert_eq!(fair[0].share_in_words(client).as_deref(), Some(told));
    }
}

/// Two instances on one Redis. Requests go to them in turn.
struct Fleet {
    redis: Redis,
    runtime: Runtime,
    clock: ManualClock,
    instances: [Limiter<Remembered<RedisStore>>; 2],
}

impl Fleet {
    fn start(text: &str) -> Fleet {
        let (redis, clock) = (Redis::start(), ManualClock::at(START));
        let runtime = Runtime::new().unwrap();
        let hash_secret = "subjects: { hash_secret: 0123456789abcdef }";
        let config = config(&format!("{hash_secret}\n{text}"));
        let instance = || {
            let mut options = Options::new(Servers::Standalone(Address {
                host: "127.0.0.1".to_owned(),
                port: redis.port(),
            }));
            options.clock = ClockSource::Caller(Arc::new(clock.clone()));
            // Redis expires keys by its own clock.
            options.margin = Span::HOUR;
            options.timeout = Duration::from_secs(10);
            options.connect_timeout = Duration::from_secs(10);
            let store = runtime.block_on(RedisStore::connect(options)).unwrap();
            let store = Remembered::new(store, Span::MINUTE, Arc::new(clock.clone()));
            let builder = Limiter::builder(&config, store).replicas(2);
            builder.clock(clock.clone()).build()
        };
        Fleet {
            instances: [instance(), instance()],
            redis,
            runtime,
            clock,
        }
    }

    fn run(&self, askers: &[Asker], seconds: u64) -> Got {
        let mut turn = 0;
        run_with(&self.clock, askers, seconds, |attributes, ask| {
            turn += 1;
            let asked = self.instances[turn % 2].ask(attributes, ask);
            self.runtime.block_on(asked).is_allowed()
        })
    }
}

/// A client that asks `burst` times at once, at every multiple of `gap`.
#[derive(Clone)]
struct Asker {
    attributes: Vec<(&'static str, String)>,
    starts: Span,
    gap: Span,
    burst: u64,
    units: u64,
}

fn asker(attributes: &[(&'static str, &str)], gap: Span) -> Asker {
    let owned = attributes
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()));
    Asker {
        attributes: owned.collect(),
        starts: Span::ZERO,
        gap,
        burst: 1,
        units: 1,
    }
}

/// Units that were admitted and requests that were denied, by client.
type Got = BTreeMap<String, (u64, u64)>;

/// Runs the askers for `seconds`. The value of the first attribute names a client in the result.
fn run(text: &str, askers: &[Asker], seconds: u64) -> Got {
    let (limiter, clock) = limiter(text);
    run_with(&clock, askers, seconds, |attributes, ask| {
        limiter.ask_now(attributes, ask).is_allowed()
    })
}

/// Does the same with a limiter of the caller's choice, which goes by `clock`.
fn run_with(
    clock: &ManualClock,
    askers: &[Asker],
    seconds: u64,
    mut allows: impl FnMut(&Attributes<'_>, Ask) -> bool,
) -> Got {
    let mut got = Got::new();
    let mut events: Vec<(u64, usize)> = Vec::new();
    for (place, asker) in askers.iter().enumerate() {
        let gap = asker.gap.as_micros();
        // Clients do not ask at the same instants.
        let first = asker.starts.as_micros() + 1 + place as u64 * 2_654_435_761 % gap;
        let instants = (0..).map(|n| first + n * gap);
        let instants = instants.take_while(|at| *at < seconds * 1_000_000);
        events.extend(instants.map(|at| (at, place)));
    }
    events.sort_unstable();
    for (at, place) in events {
        let asker = &askers[place];
        clock.set(START + Span::from_micros(at));
        let pairs = asker.attributes.iter();
        let attributes: Attributes<'_> = pairs.map(|(name, value)| (*name, &**value)).collect();
        let (admitted, denied) = got.entry(asker.attributes[0].1.clone()).or_default();
        for _ in 0..asker.burst {
            match allows(&attributes, Ask::Exactly(asker.units)) {
                true => *admitted += asker.units,
                false => *denied += 1,
            }
        }
    }
    got
}

fn shared(fair: &str) -> String {
    format!("rules:\n  - {{ id: matching, {BUCKET}{fair} }}")
}

/// The starvation experiment: a client in a loop, and one that asks ten times a second.
fn loud_and_quiet() -> [Asker; 2] {
    [
        asker(&[("tenant", "loud")], Span::from_micros(500)),
        asker(&[("tenant", "quiet")], Span::from_millis(100)),
    ]
}

#[test]
fn without_fair_shares_a_loud_client_starves_a_quiet_one() {
    let got = run(&shared(""), &loud_and_quiet(), 10);
    let (_, denied) = got["quiet"];
    assert!(denied > 50, "{got:?}");
}

#[test]
fn quiet_client_is_never_denied_and_the_loud_one_gets_the_rest() {
    let got = run(&shared(", fair: { per: [tenant] }"), &loud_and_quiet(), 10);
    assert_eq!(got["quiet"], (100, 0));
    let (loud, _) = got["loud"];
    // The refill of ten seconds, without the share of the quiet client. The capacity comes on top.
    assert!((880..=1_000).contains(&loud), "{got:?}");
}

#[test]
fn one_of_a_thousand_loud_clients_is_never_denied_below_its_share() {
    let names: Vec<String> = (0..1_000).map(|n| format!("loud-{n}")).collect();
    // The bucket knows the quiet client before the others come. A new client has saved up nothing yet.
    let mut askers = vec![Asker {
        burst: 3,
        ..asker(&[("tenant", "quiet")], Span::from_secs(30))
    }];
    askers.extend(names.iter().map(|name| Asker {
        starts: Span::from_millis(500),
        ..asker(&[("tenant", name)], Span::from_millis(500))
    }));
    let got = run(&shared(", fair: { per: [tenant] }"), &askers, 61);
    assert_eq!(got["quiet"], (9, 0));
    let total: u64 = got.values().map(|(admitted, _)| admitted).sum();
    assert!((5_978..=6_200).contains(&total), "{total}");
}

/// A thousand clients that ask `per_second` times each, and a quiet one that asks three times at once, twice a
/// minute, from `quiet_from` on. Returns what the quiet one got, and the total.
fn quiet_among_a_thousand(per_second: f64, quiet_from: Span) -> ((u64, u64), u64) {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let gap = Span::from_micros((1e6 / per_second) as u64);
    let names: Vec<String> = (0..1_000).map(|n| format!("loud-{n}")).collect();
    let mut askers = vec![Asker {
        burst: 3,
        starts: quiet_from,
        ..asker(&[("tenant", "quiet")], Span::from_secs(30))
    }];
    askers.extend(names.iter().map(|name| Asker {
        starts: Span::from_millis(500),
        ..asker(&[("tenant", name)], gap)
    }));
    let got = run(&shared(", fair: { per: [tenant] }"), &askers, 95);
    (
        got["quiet"],
        got.values().map(|(admitted, _)| admitted).sum(),
    )
}

#[test]
fn a_new_client_below_its_share_is_not_denied() {
    for per_second in [0.2, 0.5, 2.0, 5.0] {
        let (quiet, total) = quiet_among_a_thousand(per_second, Span::from_secs(20));
        assert_eq!(quiet, (9, 0), "{per_second}");
        assert!((9_310..=9_600).contains(&total), "{per_second}: {total}");
    }
}

#[test]
fn clients_that_ask_more_rarely_than_once_a_second_leave_the_reserve_alone() {
    for per_second in [0.2, 0.5] {
        let (quiet, _) = quiet_among_a_thousand(per_second, Span::ZERO);
        assert_eq!(quiet, (12, 0), "{per_second}");
    }
}

/// While there is enough for all, a burst passes as it would without `fair`.
#[test]
fn bursts_pass_while_nobody_is_denied() {
    let bursts = Asker {
        burst: 80,
        ..asker(&[("tenant", "bursts")], Span::SECOND)
    };
    for others in [1, 10] {
        let mut askers = vec![bursts.clone()];
        askers
            .extend((0..others).map(|n| asker(&[("tenant", &format!("other-{n}"))], Span::SECOND)));
        let got = run(&shared(", fair: { per: [tenant] }"), &askers, 60);
        assert_eq!(got["bursts"], (4_800, 0), "{others}");
    }
}

#[test]
fn shares_follow_the_weights_of_plans() {
    let plans = "plans: { free: {}, enterprise: {} }
tenants: { big: { plan: enterprise }, small: { plan: free } }
";
    let fair = ", fair: { per: [tenant], weights: { plan: { free: 1, enterprise: 5 } } }";
    let askers = [
        asker(&[("tenant", "big")], Span::from_micros(2_500)),
        asker(&[("tenant", "small")], Span::from_micros(300)),
    ];
    let warm = run(&format!("{plans}{}", shared(fair)), &askers, 5);
    let got = run(&format!("{plans}{}", shared(fair)), &askers, 15);
    let in_ten_seconds = |name: &str| got[name].0 - warm[name].0;
    let (big, small) = (in_ten_seconds("big"), in_ten_seconds("small"));
    assert!((808..=858).contains(&big), "{big} {small}");
    assert!((161..=172).contains(&small), "{big} {small}");
    assert!((980..=1_000).contains(&(big + small)), "{big} {small}");
}

#[test]
fn lane_gets_its_share_and_borrows_what_is_idle() {
    let fair =
        ", fair: { per: [tenant], lanes: { by: priority, shares: { high: 60%, low: 40% } } }";
    let of = |lane: &'static str| {
        let attributes = [("priority", lane), ("tenant", "one")];
        asker(&attributes, Span::from_micros(900))
    };
    let both = run(&shared(fair), &[of("high"), of("low")], 20);
    assert!((1_176..=1_300).contains(&both["high"].0), "{both:?}");
    assert!((784..=900).contains(&both["low"].0), "{both:?}");
    // A request of an unknown priority is in the last lane.
    let alone = run(&shared(fair), &[of("unknown")], 20);
    assert!((1_960..=2_100).contains(&alone["unknown"].0), "{alone:?}");
    let strict = fair.replace("low: 40% }", "low: 40% }, strict: [low]");
    let alone = run(&shared(&strict), &[of("low")], 20);
    assert!((784..=840).contains(&alone["low"].0), "{alone:?}");
}

/// Returns the lane that `explain` tells for a request with these attributes.
fn lane_of(limiter: &MemoryLimiter, attributes: &[(&'static str, &str)]) -> String {
    let attributes: Attributes<'_> = attributes.iter().copied().collect();
    let told = limiter.explain(&attributes)[0].to_string();
    let (_, lane) = told.rsplit_once("lane ").unwrap();
    lane.split(' ').next().unwrap().to_owned()
}

/// Lanes by plan go by the plan that the config gives a tenant, as weights do. What the request says does not count.
#[test]
fn lanes_by_plan_go_by_the_plan_of_the_tenant() {
    let plans = "plans: { free: {}, enterprise: {}, trial: {} }
tenants: { big: { plan: enterprise }, small: { plan: free }, tried: { plan: trial } }
";
    let fair =
        ", fair: { per: [tenant], lanes: { by: plan, shares: { enterprise: 60%, free: 40% } } }";
    let text = format!("{plans}{}", shared(fair));
    let askers = [
        asker(&[("tenant", "big")], Span::from_micros(900)),
        asker(
            &[("tenant", "small"), ("plan", "enterprise")],
            Span::from_micros(900),
        ),
    ];
    let got = run(&text, &askers, 20);
    assert!((1_176..=1_300).contains(&got["big"].0), "{got:?}");
    assert!((784..=900).contains(&got["small"].0), "{got:?}");

    let (limiter, _) = limiter(&text);
    let lane = |attributes: &[(&'static str, &str)]| lane_of(&limiter, attributes);
    assert_eq!(lane(&[("tenant", "big"), ("plan", "free")]), "enterprise");
    // A plan without a lane has the last one.
    assert_eq!(lane(&[("tenant", "tried"), ("plan", "enterprise")]), "free");
    // A tenant without a plan: the attribute counts, as for weights.
    assert_eq!(
        lane(&[("tenant", "other"), ("plan", "enterprise")]),
        "enterprise"
    );
}

#[test]
fn lanes_by_plan_go_by_the_plan_that_plan_from_names() {
    let plans = "plans: { free: {}, enterprise: {} }
plan_from: attributes.tier
default_plan: free
tenants: { big: { plan: enterprise } }
";
    let fair = ", fair: { per: [tenant], weights: { plan: { enterprise: 5 } }, lanes: { by: plan, shares: { free: 40%, enterprise: 60% } } }";
    let (limiter, _) = limiter(&format!("{plans}{}", shared(fair)));
    let lane = |attributes: &[(&'static str, &str)]| lane_of(&limiter, attributes);
    assert_eq!(
        lane(&[("tenant", "a"), ("tier", "enterprise")]),
        "enterprise"
    );
    assert_eq!(lane(&[("tenant", "big"), ("tier", "free")]), "free");
    assert_eq!(lane(&[("tenant", "big")]), "enterprise");
    // A name that `plans` does not have is ignored: so is the attribute `plan`.
    assert_eq!(
        lane(&[("tenant", "a"), ("tier", "gold"), ("plan", "enterprise")]),
        "free"
    );
    assert_eq!(lane(&[("plan", "enterprise")]), "free");
}

/// Without plans in the config, the attribute `plan` is one like others.
#[test]
fn lanes_by_plan_without_plans_go_by_the_attribute() {
    let fair =
        ", fair: { per: [tenant], lanes: { by: plan, shares: { enterprise: 60%, free: 40% } } }";
    let (limiter, _) = limiter(&shared(fair));
    assert_eq!(lane_of(&limiter, &[("plan", "enterprise")]), "enterprise");
}

#[test]
fn lanes_go_by_the_action_of_a_request() {
    let fair =
        ", fair: { per: [tenant], lanes: { by: action, shares: { search: 60%, export: 40% } } }";
    let of = |action: &'static str| {
        let attributes = [("action", action), ("tenant", "one")];
        asker(&attributes, Span::from_micros(900))
    };
    let both = run(&shared(fair), &[of("search"), of("export")], 20);
    assert!((1_176..=1_300).contains(&both["search"].0), "{both:?}");
    assert!((784..=900).contains(&both["export"].0), "{both:?}");
}

#[test]
fn shares_go_by_units_and_not_by_requests() {
    let few = Asker {
        units: 7,
        ..asker(&[("tenant", "few")], Span::from_millis(5))
    };
    let many = asker(&[("tenant", "many")], Span::from_micros(700));
    let got = run(&shared(", fair: { per: [tenant] }"), &[few, many], 30);
    let (few, many) = (got["few"].0, got["many"].0);
    assert!(few.abs_diff(many) <= 120, "{got:?}");
}

#[test]
fn denial_by_another_rule_takes_no_share() {
    let text = format!(
        "{}\n  - {{ id: own, per: [tenant], algorithm: fixed-window, limit: 3, window: 1h }}",
        shared(", fair: { per: [tenant] }")
    );
    let got = run(&text, &loud_and_quiet(), 2);
    assert_eq!((got["loud"].0, got["quiet"].0), (3, 3));
}

/// Two instances on one Redis admit and deny the same requests as one instance in memory.
#[test]
fn two_instances_on_redis_give_the_same_shares_as_one_in_memory() {
    let by_weight = "plans: { free: {}, enterprise: {} }
tenants: { big: { plan: enterprise }, small: { plan: free } }
";
    let weights = ", fair: { per: [tenant], weights: { plan: { free: 1, enterprise: 5 } } }";
    let lanes =
        ", fair: { per: [tenant], lanes: { by: priority, shares: { high: 60%, low: 40% } } }";
    let of = |lane: &'static str| {
        let attributes = [("priority", lane), ("tenant", "one")];
        asker(&attributes, Span::from_micros(1_900))
    };
    let costly = Asker {
        units: 7,
        ..asker(&[("tenant", "few")], Span::from_millis(5))
    };
    let many = asker(&[("tenant", "many")], Span::from_micros(1_700));
    for (text, askers) in [
        (
            shared(", fair: { per: [tenant] }"),
            loud_and_quiet().to_vec(),
        ),
        (
            format!("{by_weight}{}", shared(weights)),
            vec![
                asker(&[("tenant", "big")], Span::from_micros(2_500)),
                asker(&[("tenant", "small")], Span::from_micros(900)),
            ],
        ),
        (shared(lanes), vec![of("high"), of("low")]),
        (shared(lanes), vec![of("low")]),
        (shared(", fair: { per: [tenant] }"), vec![costly, many]),
    ] {
        let fleet = Fleet::start(&text);
        let got = fleet.run(&askers, 2);
        assert_eq!(got, run(&text, &askers, 2), "{text}");
    }
}

/// Without Redis, each instance divides its part of the bucket fairly.
#[test]
fn instances_without_redis_divide_their_part_fairly() {
    let fair = ", fair: { per: [tenant] }, on_store_failure: local-fallback";
    let fleet = Fleet::start(&shared(fair));
    fleet.redis.kill();
    // Each instance has half of the bucket: 50 a second.
    let one = &fleet.instances[0];
    let [mut loud, quiet] = loud_and_quiet();
    // The bucket knows the quiet client before the loud one has emptied it.
    loud.starts = Span::from_millis(500);
    let got = run_with(&fleet.clock, &[loud, quiet], 10, |attributes, ask| {
        fleet
            .runtime
            .block_on(one.ask(attributes, ask))
            .is_allowed()
    });
    assert_eq!(got["quiet"], (100, 0));
    let (loud, _) = got["loud"];
    assert!((360..=450).contains(&loud), "{got:?}");
}

#[test]
fn explain_tells_the_weight_and_the_lane_of_a_request() {
    let fair = ", fair: { per: [tenant], weights: { plan: { pro: 5 } }, lanes: { by: priority, shares: { high: 60%, low: 40% } } }";
    let (limiter, _) = limiter(&shared(fair));
    let attributes = Attributes::from([("tenant", "a"), ("plan", "pro"), ("priority", "high")]);
    let told = limiter.explain(&attributes)[0].to_string();
    assert_eq!(
        told,
        "matching: applies, cost 1, one allowance for all: capacity 100 (rule), refill 100/s (rule), fair per tenant, \
         weights by plan: pro 5, lanes by priority: high 60% low 40%, otherwise low (rule), weight 5 (this client, by \
         plan), lane high (this request, by priority)"
    );
}
