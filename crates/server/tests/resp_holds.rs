//! Reservations and leases of the RESP door.

#![allow(clippy::unwrap_used, clippy::panic)] // Test helpers may panic.

mod resp_door;

use std::io::Write;
use std::net::Shutdown;

use resp_door::{Door, command};
use tollgate_rig::{Reply, Resp};
use tollgate_server::resp::Options;

const RULES: &str = "
version: 1
rules:
  - { id: tokens, match: { action: llm }, per: [tenant], algorithm: fixed-window, limit: 1000, window: 365d }
  - { id: jobs, match: { action: job }, per: [tenant], algorithm: concurrency, limit: 2, lease: 30s, max_lease: 1h }
";

fn door() -> Door {
    Door::with(RULES, Options::default(), None)
}

/// The fields of an answer, by name.
struct Fields(Vec<(String, Reply)>);

impl Fields {
    fn of(reply: Reply) -> Fields {
        let items = reply.items();
        let pairs = items.chunks_exact(2);
        Fields(
            pairs
                .map(|pair| (pair[0].clone().text(), pair[1].clone()))
                .collect(),
        )
    }

    fn get(&self, name: &str) -> Reply {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("no {name}")).1.clone()
    }

    fn text(&self, name: &str) -> String {
        self.get(name).text()
    }

    fn int(&self, name: &str) -> i64 {
        self.get(name).int()
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }
}

fn ask(client: &mut Resp, line: &str) -> Fields {
    let words: Vec<&str> = line.split(' ').collect();
    Fields::of(client.command(&words))
}

fn left(client: &mut Resp) -> i64 {
    ask(client, "TG.PEEK action llm tenant acme").int("remaining")
}

#[test]
fn reservation_is_settled_once() {
    let door = door();
    let client = &mut door.client();
    let reserve = "TG.RESERVE action llm tenant acme cost 600 ttl 60000 key call-1";
    let held = ask(client, reserve);
    assert_eq!((held.int("allowed"), held.int("repeated")), (1, 0));
    assert_eq!((held.int("remaining"), held.int("cost")), (400, 600));
    assert_eq!(held.text("state"), "RESERVED");
    let id = held.text("id");
    let again = ask(client, reserve);
    assert_eq!((again.int("allowed"), again.int("repeated")), (1, 1));
    assert_eq!(again.text("id"), id);
    let refused = ask(client, "TG.RESERVE action llm tenant acme COST 600");
    assert_eq!(
        (refused.int("allowed"), refused.text("code")),
        (0, "RATE_LIMIT".to_owned())
    );
    assert!(!refused.has("id"));

    let extended = ask(client, &format!("TG.EXTEND {id} 600000"));
    assert!(extended.int("expiresAtEpochMillis") > held.int("expiresAtEpochMillis"));
    for _ in 0..2 {
        let ended = ask(client, &format!("tg.commit {id} 120"));
        assert_eq!(
            (ended.text("state"), ended.int("actual")),
            ("CONSUMED".to_owned(), 120)
        );
        assert_eq!(left(client), 880);
    }
    let other = ask(client, "TG.RESERVE action llm tenant acme COST 80").text("id");
    for _ in 0..2 {
        let ended = ask(client, &format!("TG.RELEASE {other}"));
        assert_eq!(ended.text("state"), "RELEASED");
    }
    assert_eq!(left(client), 880);
}

#[test]
fn errors_start_with_a_word_for_programs() {
    let door = door();
    let client = &mut door.client();
    let reserve = "TG.RESERVE action llm tenant acme COST 10 KEY k";
    let id = ask(client, reserve).text("id");
    ask(client, &format!("TG.COMMIT {id} 7"));
    let lease = ask(client, "TG.ACQUIRE action job tenant acme");
    let (lease, stranger) = (lease.text("id"), "0".repeat(32));
    let nobodys = format!("h1-00000000-{stranger}");
    let (long, longer) = ("o".repeat(129), "k".repeat(257));
    for (line, starts) in [
        (
            "TG.RESERVE action llm tenant acme COST 11 KEY k",
            "-TGCONFLICT the idempotency key",
        ),
        (
            &format!("TG.COMMIT {id} 8"),
            "-TGENDED the reservation or lease has ended already: 7 of 10 units",
        ),
        (&format!("TG.RELEASE {id}"), "-TGENDED "),
        (&format!("TG.EXTEND {id} 1000"), "-TGENDED "),
        (&format!("TG.COMMIT {nobodys} 8"), "-TGUNKNOWN "),
        (&format!("TG.RELEASE {lease}"), "-TGUNKNOWN "),
        (&format!("TG.RENEW {lease} {stranger}"), "-TGNOTYOURS "),
        (&format!("TG.FREE {lease} {stranger}"), "-TGNOTYOURS "),
        ("TG.ACQUIRE action none", "-TGNOLEASE "),
        (
            "TG.ACQUIRE action job tenant acme TTL 3600001",
            "-ERR the time to live 3600001ms is too long",
        ),
        ("TG.USAGE acme", "-TGNOLEDGER "),
        ("TG.USAGE acme PERIOD July", "-ERR \"July\" is not a period"),
        ("TG.USAGE acme MONTH 7", "-ERR syntax error"),
        ("TG.USAGE acme PERIOD", "-ERR syntax error"),
        ("TG.USAGE acme RULE a RULE b", "-ERR RULE is given twice"),
        ("TG.USAGE", "-ERR wrong number of arguments"),
        (
            "TG.COMMIT x 1",
            "-ERR this is not the id of a reservation or lease",
        ),
        (
            &format!("TG.COMMIT {id} -1"),
            "-ERR actual must not be negative",
        ),
        (
            &format!("TG.COMMIT {id} 1.5"),
            "-ERR actual is not a whole number",
        ),
        (&format!("TG.COMMIT {id}"), "-ERR wrong number of arguments"),
        (
            &format!("TG.RENEW {lease} x"),
            "-ERR this is not a lease token",
        ),
        (
            &format!("TG.RENEW {lease} {stranger} 1 2"),
            "-ERR wrong number of arguments",
        ),
        (
            "TG.RESERVE action llm tenant acme TTL 99",
            "-ERR a time to live of 99ms",
        ),
        (
            "TG.RESERVE action llm tenant acme TTL 4503599627370496",
            "-ERR ",
        ),
        (
            "TG.RESERVE action llm tenant acme KEY \"\"",
            "-ERR the idempotency key must have 1 to 256 bytes",
        ),
        (
            "TG.RESERVE action llm tenant acme KEY \"a\\x00b\"",
            "-ERR the idempotency key must have 1 to 256 bytes",
        ),
        (
            &format!("TG.RESERVE action llm tenant acme KEY {longer}"),
            "-ERR the idempotency key must have 1 to 256 bytes",
        ),
        (
            "TG.RESERVE action llm tenant",
            "-ERR attributes come in pairs",
        ),
        (
            "TG.ACQUIRE action job tenant b WAIT 30001",
            "-ERR a wait of 30001ms",
        ),
        (
            &format!("TG.ACQUIRE action job tenant b OWNER {long}"),
            "-ERR the owner",
        ),
        (
            "TG.ACQUIRE action job tenant b WAIT x",
            "-ERR WAIT is not a whole number",
        ),
    ] {
        let answer = door.lines(line);
        assert!(answer.starts_with(starts), "{line}: {answer}");
        assert_eq!(answer.matches("\r\n").count(), 1, "{line}: {answer}");
    }
    door.still_serves();
}

#[test]
fn leases_are_acquired_renewed_listed_and_released() {
    let door = door();
    let client = &mut door.client();
    let lease = ask(
        client,
        "TG.ACQUIRE action job tenant acme OWNER w1 TTL 10000",
    );
    assert_eq!(
        (lease.int("allowed"), lease.text("state")),
        (1, "HELD".to_owned())
    );
    let second = ask(client, "TG.ACQUIRE action job tenant acme OWNER w2");
    assert!(second.int("fence") > lease.int("fence"));
    let refused = ask(client, "TG.ACQUIRE action job tenant acme");
    assert_eq!(refused.int("allowed"), 0);
    assert!(!refused.has("token"));
    let rules = client
        .command(&["TG.HOLDERS", "action", "job", "tenant", "acme"])
        .items();
    let [rule] = &rules[..] else {
        panic!("{} rules", rules.len());
    };
    let rule = Fields::of(rule.clone());
    assert_eq!(
        (rule.text("ruleId"), rule.int("limit")),
        ("jobs".to_owned(), 2)
    );
    let mut owners: Vec<_> = rule
        .get("holders")
        .items()
        .into_iter()
        .map(|it| Fields::of(it).text("owner"))
        .collect();
    owners.sort();
    assert_eq!(owners, ["w1", "w2"]);

    let (id, token) = (lease.text("id"), lease.text("token"));
    let renewed = ask(client, &format!("TG.RENEW {id} {token} 3600000"));
    assert!(renewed.int("expiresAtEpochMillis") > lease.int("expiresAtEpochMillis"));
    for _ in 0..2 {
        let freed = ask(client, &format!("TG.FREE {id} {token}"));
        assert_eq!(freed.text("state"), "RELEASED");
    }
    assert_eq!(
        ask(client, "TG.ACQUIRE action job tenant acme").int("allowed"),
        1
    );
}

#[test]
fn waiting_client_gets_the_released_slot_and_later_commands_are_kept() {
    let door = door();
    let client = &mut door.client();
    let lease = ask(client, "TG.ACQUIRE action job tenant acme");
    ask(client, "TG.ACQUIRE action job tenant acme");
    let mut waiting = door.connect();
    let wait = [
        "TG.ACQUIRE",
        "action",
        "job",
        "tenant",
        "acme",
        "WAIT",
        "30000",
        "OWNER",
        "late",
    ];
    let pipeline = [
        command(&["PING"]),
        command(&wait),
        command(&["PING", "after"]),
    ]
    .concat();
    waiting.write_all(pipeline.as_bytes()).unwrap();
    // The commands before the waiting command are answered before the wait.
    let mut pong = [0; 7];
    std::io::Read::read_exact(&mut waiting, &mut pong).unwrap();
    assert_eq!(&pong, b"+PONG\r\n");
    waiting.write_all(command(&["QUIT"]).as_bytes()).unwrap();
    let (id, token) = (lease.text("id"), lease.text("token"));
    ask(client, &format!("TG.FREE {id} {token}"));
    let rest = resp_door::read_all(waiting);
    assert!(rest.contains("$5\r\nowner\r\n$4\r\nlate\r\n"), "{rest}");
    assert!(rest.ends_with("$5\r\nafter\r\n+OK\r\n"), "{rest}");
}

#[test]
fn client_that_hangs_up_gives_up_its_place_in_the_queue() {
    let door = door();
    let client = &mut door.client();
    let lease = ask(client, "TG.ACQUIRE action job tenant acme");
    ask(client, "TG.ACQUIRE action job tenant acme");
    let mut gone = door.connect();
    gone.write_all(b"TG.ACQUIRE action job tenant acme WAIT 30000\r\n")
        .unwrap();
    gone.shutdown(Shutdown::Write).unwrap();
    // The server has noticed once it closes its side too.
    assert_eq!(resp_door::read_all(gone), "");
    let (id, token) = (lease.text("id"), lease.text("token"));
    ask(client, &format!("TG.FREE {id} {token}"));
    let next = ask(client, "TG.ACQUIRE action job tenant acme WAIT 30000");
    assert_eq!(next.int("allowed"), 1);
}

#[test]
fn pipeline_of_reservations_is_answered_in_order() {
    let door = door();
    let mut lines = String::new();
    for _ in 0..6 {
        lines.push_str("TG.RESERVE action llm tenant acme COST 200\r\n");
    }
    lines.push_str("TG.PEEK action llm tenant acme");
    let answers = door.lines(&lines);
    let allowed: Vec<&str> = answers
        .split("$7\r\nallowed\r\n")
        .skip(1)
        .map(|it| &it[..2])
        .collect();
    assert_eq!(allowed, [":1", ":1", ":1", ":1", ":1", ":0", ":0"]);
}
