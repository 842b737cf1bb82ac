//! Careless and hostile clients of the RESP door: each gets a clear answer, and the server goes on.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod resp_door;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use resp_door::{Door, command, read_all};
use tollgate_rig::{Stopwatch, wait};
use tollgate_server::net::MAX_CONNECTIONS;
use tollgate_server::resp::bounds;

#[test]
fn large_commands_are_rejected_by_the_bound_they_break() {
    let door = Door::start();
    let bulk = "x".repeat(bounds::MAX_BULK);
    let argument = format!("${}\r\n{bulk}\r\n", bounds::MAX_BULK);
    for (bytes, says) in [
        (
            format!("*{}\r\n", bounds::MAX_ARGS + 1),
            "a command of more than 128 arguments",
        ),
        (
            "*2147483647\r\n".to_owned(),
            "a command of more than 128 arguments",
        ),
        ("*99999999999999999999\r\n".to_owned(), "invalid length"),
        (
            format!("*2\r\n$4\r\nECHO\r\n${}\r\n", bounds::MAX_BULK + 1),
            "an argument of more than 8192 bytes",
        ),
        (
            "*1\r\n$2147483647\r\n".to_owned(),
            "an argument of more than 8192 bytes",
        ),
        (
            format!("*9\r\n{}", argument.repeat(8)),
            "a command of more than 32768 bytes",
        ),
        (
            format!("ECHO {}\r\n", "x".repeat(bounds::MAX_INLINE)),
            "an inline command of more than 4096 bytes",
        ),
        (
            "x".repeat(1 << 20),
            "an inline command of more than 4096 bytes",
        ),
    ] {
        let answer = door.raw(&bytes);
        assert_eq!(answer, format!("-ERR Protocol error: {says}\r\n"));
    }
    // Commands just within the bounds are accepted.
    let echoed = door.raw(format!("{}QUIT\r\n", command(&["ECHO", &bulk])));
    assert_eq!(
        echoed,
        format!("${}\r\n{bulk}\r\n+OK\r\n", bounds::MAX_BULK)
    );
    let most = vec!["x"; bounds::MAX_ARGS];
    let most = door.raw(format!("{}QUIT\r\n", command(&most)));
    assert_eq!(most, "-ERR unknown command 'x'\r\n+OK\r\n");
    door.still_serves();
}

#[test]
fn nesting_is_rejected_at_its_first_level() {
    let door = Door::start();
    let deep = "*1\r\n".repeat(100_000);
    let answer = door.raw(&deep);
    assert_eq!(answer, "-ERR Protocol error: expected '$', got '*'\r\n");
    door.still_serves();
}

#[test]
fn garbage_after_commands_ends_the_connection_after_their_answers() {
    let door = Door::start();
    let garbage: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    for first in ["", "PING\r\n"] {
        let sent = [first.as_bytes(), b"*1\r\n", &garbage].concat();
        let answer = door.raw(&sent);
        let error = "-ERR Protocol error: expected '$', got '?'\r\n";
        let pong = if first.is_empty() { "" } else { "+PONG\r\n" };
        assert_eq!(answer, format!("{pong}{error}"));
    }
    for hostile in [
        "*1\r\n$-1\r\n",
        "*1\r\n$4\r\nPINGxx",
        "*1\r\n$ 4\r\nPING\r\n",
        "*1\r\n+PING\r\n",
        "*\r\n",
        "*1\n",
        "ECHO \"x\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\n\r\nCL.THROTTLE k 1 1 1\r\n",
    ] {
        let answer = door.raw(hostile);
        assert!(
            answer.starts_with("-ERR Protocol error: "),
            "{hostile:?}: {answer:?}"
        );
        assert_eq!(answer.matches("\r\n").count(), 1, "{hostile:?}: {answer:?}");
    }
    door.still_serves();
}

#[test]
fn incomplete_commands_are_not_run() {
    let door = Door::start();
    let whole = command(&["CL.THROTTLE", "cut", "0", "1", "3600"]);
    for length in 0..whole.len() {
        let mut stream = door.connect();
        stream.write_all(&whole.as_bytes()[..length]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(read_all(stream), "");
    }
    let counts = door.engine.metrics().throttles();
    assert_eq!(counts.allowed + counts.limited, 0);
    door.still_serves();
}

#[test]
fn input_of_a_client_never_becomes_a_separate_answer() {
    let door = Door::start();
    let answer = door.lines("\"+OK\\r\\n+OK\\r\\n\"");
    assert_eq!(answer, "-ERR unknown command '+OK??+OK??'\r\n");
    let long = door.lines(&"x".repeat(4000));
    assert_eq!(
        long,
        format!("-ERR unknown command '{}'\r\n", "x".repeat(64))
    );
}

#[test]
fn client_that_reads_no_answers_holds_little_memory_and_is_cut_off() {
    let door = Door::start();
    let mut stream = door.connect();
    let echo = command(&["ECHO", &"x".repeat(bounds::MAX_BULK)]).repeat(16);
    stream
        .set_write_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    let mut sent = 0;
    // The server reads only as much as it can answer, so at some point it takes nothing more.
    while stream.write_all(echo.as_bytes()).is_ok() {
        sent += echo.len();
        assert!(sent < 1 << 30, "the server swallows everything");
    }
    door.still_serves();
}

/// Opens many silent connections; then each of them sends something.
const IDLE_CLIENTS: &str = r#"
import socket, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
connections = []
while len(connections) < count:
    # No more at a time than a system keeps for a server that is busy.
    # Each of them from another address: one client may not take all places.
    source = ("127.0.1.%d" % (len(connections) // 500 + 1), 0)
    some = [socket.create_connection(("127.0.0.1", port), source_address=source) for _ in range(min(500, count - len(connections)))]
    for c in some:
        c.sendall(b"PING\r\n")
    for c in some:
        assert c.recv(7) == b"+PONG\r\n"
    connections += some
print("connected", flush=True)
sys.stdin.readline()
for c in connections:
    c.sendall(b"CL.THROTTLE k 1 1 1\r\n")
for c in connections:
    assert c.recv(4) == b"*5\r\n"
connections.pop().close()
print("answered", flush=True)
sys.stdin.readline()
"#;

#[test]
fn ten_thousand_idle_connections_cost_little_and_one_more_waits() {
    let door = Door::start();
    door.still_serves();
    let before = resident_kib();
    // This runs in a separate process, because one process may not open enough files for both sides.
    let script = format!(
        "ulimit -n $(ulimit -H -n); exec python3 -c \"$0\" {} {MAX_CONNECTIONS}",
        door.address.port()
    );
    let mut clients = Command::new("bash")
        .args(["-c", &script, IDLE_CLIENTS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(clients.stdout.take().unwrap()).lines();
    let stopwatch = Stopwatch::start();
    assert_eq!(said.next().unwrap().unwrap(), "connected");
    println!("all connected in {:?}", stopwatch.elapsed());
    let each = (resident_kib() - before) as f64 / MAX_CONNECTIONS as f64;
    println!("{each:.1} KiB for an idle connection");
    assert!(each < 16.0, "{each:.1} KiB for an idle connection");

    let mut late = door.connect();
    late.write_all(b"PING\r\n").unwrap();
    late.set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    assert!(
        late.read(&mut [0]).is_err(),
        "there is no place for one more"
    );

    let mut tell = clients.stdin.take().unwrap();
    let stopwatch = Stopwatch::start();
    tell.write_all(b"go on\n").unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "answered");
    println!("all answered in {:?}", stopwatch.elapsed());
    let mut pong = [0; 7];
    wait::until("a place is free", Duration::from_secs(10), || {
        late.read_exact(&mut pong).is_ok()
    });
    drop(tell);
    clients.wait().unwrap();
    door.still_serves();
}

/// Returns the resident memory of this process, in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|it| it.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
