//! The commands of the RESP door and their answers, to the byte.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod resp_door;

use std::io::{Read, Write};

use resp_door::{Door, RULES, command};
use tollgate_config::Secret;
use tollgate_rig::Reply;
use tollgate_server::resp::Options;

/// Returns the fields of a decision.
fn fields(reply: Reply) -> Vec<(String, Reply)> {
    let items = reply.items();
    let pairs = items.chunks_exact(2);
    pairs
        .map(|pair| (pair[0].clone().text(), pair[1].clone()))
        .collect()
}

fn field(fields: &[(String, Reply)], name: &str) -> Reply {
    let found = fields.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value.clone()).unwrap()
}

fn with_password() -> Door {
    let options = Options {
        password: Some(Secret::new("open sesame".to_owned())),
        ..Options::default()
    };
    Door::with(RULES, options, None)
}

#[test]
fn commands_that_clients_send_when_they_connect() {
    let door = Door::start();
    for (lines, answer) in [
        ("PING", "+PONG\r\n"),
        ("ping hello", "$5\r\nhello\r\n"),
        ("ECHO 'a b'", "$3\r\na b\r\n"),
        ("SELECT 0", "+OK\r\n"),
        (
            "SELECT 1",
            "-ERR DB index is out of range: only 0 exists\r\n",
        ),
        ("CLIENT SETINFO LIB-NAME redis-py", "+OK\r\n"),
        ("CLIENT SETNAME me\r\nCLIENT GETNAME", "+OK\r\n$2\r\nme\r\n"),
        ("CLIENT GETNAME", "$-1\r\n"),
        ("CLIENT NO-EVICT on\r\nCLIENT NO-TOUCH on", "+OK\r\n+OK\r\n"),
        (
            "CLIENT KILL x",
            "-ERR unknown subcommand 'KILL' of 'client'\r\n",
        ),
        (
            "CLIENT ID x",
            "-ERR wrong number of arguments for 'client' command\r\n",
        ),
        ("COMMAND COUNT", ":24\r\n"),
        ("CONFIG GET save", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n"),
        ("CONFIG GET nothing", "*0\r\n"),
        (
            "CONFIG SET save x",
            "-ERR unknown subcommand 'SET' of 'config'\r\n",
        ),
        ("RESET", "+RESET\r\n"),
        ("GET x", "-ERR unknown command 'GET'\r\n"),
        (
            "ECHO",
            "-ERR wrong number of arguments for 'echo' command\r\n",
        ),
        (
            "PING 1 2",
            "-ERR wrong number of arguments for 'ping' command\r\n",
        ),
        ("HELLO 4", "-NOPROTO unsupported protocol version\r\n"),
        (
            "HELLO x",
            "-ERR Protocol version is not an integer or out of range\r\n",
        ),
        ("HELLO 2 SETNAME", "-ERR syntax error\r\n"),
        ("AUTH x y z", "-ERR syntax error\r\n"),
        ("AUTH default x", "+OK\r\n"),
        ("\r\n\r\n*0\r\nPING", "+PONG\r\n"),
    ] {
        assert_eq!(door.lines(lines), answer, "{lines:?}");
    }
    let no_password = door.lines("AUTH x");
    assert!(no_password.starts_with("-ERR AUTH <password> called without any password"));
}

#[test]
fn info_has_sections_and_counts_decisions() {
    let door = Door::start();
    let mut client = door.client();
    client.command(&["CL.THROTTLE", "k", "0", "1", "60"]);
    client.command(&["CL.THROTTLE", "k", "0", "1", "60"]);
    let all = client.command(&["INFO"]).text();
    for line in [
        "# Server\r\nredis_version:7.",
        "loading:0\r\n",
        "role:master\r\n",
        "connected_clients:1\r\n",
        "store:memory\r\n",
        "rules:4\r\n",
        "throttle_allowed:1\r\nthrottle_limited:1\r\n",
    ] {
        assert!(all.contains(line), "{line:?} is not in\n{all}");
    }
    let some = client.command(&["INFO", "clients", "tollgate"]).text();
    assert!(some.starts_with("# Clients\r\n"), "{some}");
    assert!(!some.contains("# Server"), "{some}");
}

#[test]
fn hello_selects_the_protocol() {
    let door = Door::start();
    let mut stream = door.connect();
    let mut ask = |line: &str, answer: &str| {
        stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
        let mut bytes = vec![0; answer.len()];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), answer, "{line}");
    };
    let hello = |proto: u8, head: &str| {
        format!(
            "{head}\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.2.0\r\n\
             $5\r\nproto\r\n:{proto}\r\n$2\r\nid\r\n:1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n\
             $4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"
        )
    };
    ask("HELLO", &hello(2, "*14"));
    ask("HELLO 3 AUTH default x SETNAME me", &hello(3, "%7"));
    ask("CLIENT GETNAME", "$2\r\nme\r\n");
    ask(
        "CL.THROTTLE k 0 1 60",
        "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:60\r\n",
    );
    ask(
        "TG.PEEK action none",
        "%15\r\n$7\r\nallowed\r\n#t\r\n$6\r\nruleId\r\n_\r\n",
    );
    let mut rest = vec![0; 4096];
    let _ = std::io::Read::read(&mut stream, &mut rest).unwrap();
    let mut ask = |line: &str, answer: &str| {
        stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
        let mut bytes = vec![0; answer.len()];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), answer, "{line}");
    };
    ask("RESET", "+RESET\r\n");
    ask("CLIENT GETNAME", "$-1\r\n");
}

#[test]
fn only_login_commands_work_before_the_login() {
    let door = with_password();
    for line in ["PING", "CL.THROTTLE k 1 1 1", "TG.CHECK", "INFO", "NOTHING"] {
        let answer = door.lines(line);
        assert_eq!(answer, "-NOAUTH Authentication required.\r\n", "{line}");
    }
    assert!(
        door.lines("HELLO 3")
            .starts_with("-NOAUTH HELLO must be called")
    );
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    for line in [
        "AUTH 'open sesam'",
        "AUTH ''",
        "AUTH root 'open sesame'",
        "HELLO 3 AUTH default x",
    ] {
        assert_eq!(
            door.lines(&format!("{line}\r\nRESET")),
            format!("{wrong}+RESET\r\n")
        );
    }
    for line in ["AUTH 'open sesame'", "AUTH default 'open sesame'"] {
        assert_eq!(door.lines(&format!("{line}\r\nPING")), "+OK\r\n+PONG\r\n");
    }
    let hello = door.lines("HELLO 2 AUTH default 'open sesame'\r\nPING\r\nRESET\r\nPING");
    assert!(
        hello.ends_with("*0\r\n+PONG\r\n+RESET\r\n-NOAUTH Authentication required.\r\n"),
        "{hello}"
    );
}

#[test]
fn throttle_answers_five_numbers() {
    let door = Door::start();
    let mut client = door.client();
    let mut throttle = |args: &[&str]| {
        let command = [&["CL.THROTTLE"], args].concat();
        let numbers = client.command(&command).items();
        numbers.into_iter().map(Reply::int).collect::<Vec<_>>()
    };
    assert_eq!(throttle(&["user123", "15", "30", "60"]), [0, 16, 15, -1, 2]);
    assert_eq!(throttle(&["one", "0", "1", "3600"]), [0, 1, 0, -1, 3600]);
    let limited = throttle(&["one", "0", "1", "3600"]);
    assert_eq!(limited[..3], [1, 1, 0]);
    assert!(limited[3] > 3500 && limited[3] == limited[4], "{limited:?}");
    assert_eq!(
        throttle(&["one", "0", "1", "3600", "0"])[..4],
        [0, 1, 0, -1]
    );
    assert_eq!(throttle(&["two", "4", "1", "3600", "6"]), [1, 5, 5, -1, 0]);
    assert_eq!(
        throttle(&["two", "4", "1", "3600", "5"])[..4],
        [0, 5, 0, -1]
    );
}

#[test]
fn check_decides_by_the_rules() {
    let door = Door::start();
    let mut client = door.client();
    let ann = ["TG.CHECK", "action", "search", "user", "ann"];
    let first = fields(client.command(&ann));
    for (name, value) in [
        ("allowed", Reply::Int(1)),
        ("ruleId", Reply::Bulk(b"api".into())),
        ("limit", Reply::Int(3)),
        ("remaining", Reply::Int(2)),
        ("retryAfterMillis", Reply::Null),
        ("algorithm", Reply::Bulk(b"gcra".into())),
        ("granted", Reply::Int(1)),
        ("delayMillis", Reply::Int(0)),
        ("fallback", Reply::Null),
        ("code", Reply::Null),
        ("degraded", Reply::Int(0)),
    ] {
        assert_eq!(field(&first, name), value, "{name}");
    }
    let decided = field(&first, "decidedAtEpochMicros").int();
    let reset = field(&first, "resetAtEpochMillis").int();
    assert!(
        (reset - decided / 1000 - 1_200_000).abs() <= 1,
        "{reset}, {decided}"
    );

    let rest = fields(client.command(&[&ann[..], &["UPTO", "10"]].concat()));
    assert_eq!(field(&rest, "granted"), Reply::Int(2));
    let refused = fields(client.command(&ann));
    assert_eq!(field(&refused, "allowed"), Reply::Int(0));
    assert_eq!(field(&refused, "code"), Reply::Bulk(b"RATE_LIMIT".into()));
    assert_eq!(field(&refused, "reason"), Reply::Bulk(b"exceeded".into()));
    let wait = field(&refused, "retryAfterMillis").int();
    assert!((1..=1_200_000).contains(&wait), "{wait}");

    // Another subject is not affected, and a request without rules is allowed.
    let bob = fields(client.command(&["TG.CHECK", "action", "search", "user", "bob", "cost", "3"]));
    assert_eq!(field(&bob, "remaining"), Reply::Int(0));
    let other = fields(client.command(&["TG.CHECK", "action", "other"]));
    assert_eq!(field(&other, "allowed"), Reply::Int(1));
    assert_eq!(field(&other, "ruleId"), Reply::Null);
}

#[test]
fn peek_charges_nothing_and_refund_gives_back() {
    let door = Door::start();
    let mut client = door.client();
    let mut ask = |name: &str, more: &[&str]| {
        let args = [&[name, "action", "login", "user", "ann"], more].concat();
        fields(client.command(&args))
    };
    for _ in 0..5 {
        assert_eq!(field(&ask("TG.PEEK", &[]), "remaining"), Reply::Int(2));
    }
    let taken = ask("TG.CHECK", &["COST", "2"]);
    assert_eq!(field(&taken, "remaining"), Reply::Int(0));
    assert_eq!(field(&ask("TG.PEEK", &[]), "allowed"), Reply::Int(0));
    let at = field(&taken, "decidedAtEpochMicros").int().to_string();
    let back = ask("TG.REFUND", &["AT", &at]);
    assert_eq!(field(&back, "remaining"), Reply::Int(1));
    assert_eq!(
        field(&ask("TG.REFUND", &["COST", "1"]), "remaining"),
        Reply::Int(2)
    );
}

#[test]
fn shaping_and_immediate_denials_are_answered() {
    let door = Door::start();
    let mut client = door.client();
    client.command(&["TG.CHECK", "action", "mail"]);
    let second = fields(client.command(&["TG.CHECK", "action", "mail"]));
    let delay = field(&second, "delayMillis").int();
    assert!((30_000..=60_000).contains(&delay), "{delay}");
    client.command(&["TG.CHECK", "action", "mail"]);
    let full = fields(client.command(&["TG.CHECK", "action", "mail"]));
    assert_eq!(field(&full, "code"), Reply::Bulk(b"QUEUE_FULL".into()));
    let missing = fields(client.command(&["TG.CHECK", "action", "pay"]));
    assert_eq!(
        field(&missing, "code"),
        Reply::Bulk(b"MISSING_ATTRIBUTE".into())
    );
}

#[test]
fn wrong_attributes_and_options_are_named() {
    let door = Door::start();
    let many: Vec<String> = (0..33).map(|i| format!("a{i} x")).collect();
    let many = format!("TG.CHECK {}", many.join(" "));
    let long = format!("TG.CHECK a {}", "x".repeat(1025));
    for (line, says) in [
        ("TG.CHECK a", "attributes come in pairs"),
        ("TG.CHECK 'a b' x", "\"a b\" is not an attribute name"),
        ("TG.CHECK \"\\xff\" x", "is not an attribute name"),
        (
            "TG.CHECK a \"\\xff\"",
            "the value of attribute a is not UTF-8 text",
        ),
        ("TG.CHECK a 1 a 2", "attribute a is given twice"),
        ("TG.CHECK COST 1 COST 2", "COST is given twice"),
        (
            "TG.CHECK COST 1 UPTO 2",
            "COST and UPTO cannot be used together",
        ),
        ("TG.CHECK COST x", "COST is not a whole number: 'x'"),
        ("TG.CHECK COST -1", "COST must not be negative"),
        (
            "TG.CHECK COST 9007199254740992",
            "COST is above the largest amount",
        ),
        ("TG.REFUND UPTO 1 AT x", "AT is not a whole number"),
        (&many, "more than 32 attributes"),
        (&long, "the value of attribute a is 1025 bytes long"),
    ] {
        let answer = door.lines(line);
        assert!(answer.starts_with("-ERR "), "{line}: {answer}");
        assert!(answer.contains(says), "{line}: {answer}");
    }
}

#[test]
fn pipeline_is_answered_in_order_however_it_is_split() {
    let door = Door::start();
    let echoes: Vec<String> = (0..3000).map(|i| i.to_string()).collect();
    let sent: String = echoes.iter().map(|it| command(&["ECHO", it])).collect();
    let expected: String = echoes
        .iter()
        .map(|it| format!("${}\r\n{it}\r\n", it.len()))
        .collect();
    for piece in [1 << 20, 4096, 1000, 7] {
        let mut stream = door.connect();
        let mut reader = stream.try_clone().unwrap();
        let length = expected.len();
        let reading = std::thread::spawn(move || {
            let mut answer = vec![0; length];
            reader.read_exact(&mut answer).unwrap();
            answer
        });
        for piece in sent.as_bytes().chunks(piece) {
            stream.write_all(piece).unwrap();
        }
        assert!(reading.join().unwrap() == expected.as_bytes());
    }
}

#[test]
fn commands_that_were_read_are_answered_after_the_stop() {
    let mut door = Door::start();
    let mut idle = door.connect();
    let mut stream = door.connect();
    stream
        .write_all("PING\r\n".repeat(1000).as_bytes())
        .unwrap();
    let mut first = [0; 7];
    stream.read_exact(&mut first).unwrap();
    door.stop();
    door.join();
    // Every answer after the first is complete.
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(
        !rest.is_empty() && rest.len() % 7 == 0,
        "{} bytes",
        rest.len()
    );
    assert_eq!(idle.read(&mut [0]).unwrap(), 0);
}
