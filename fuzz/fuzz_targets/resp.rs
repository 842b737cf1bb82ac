//! Takes any bytes as the input from a Redis client, in pieces of any size. Nothing may panic, every answer
//! is well-formed, and the buffer stays bounded.
//!
//! The first byte is the size of the pieces; 0 means that all bytes come at once.

#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use tollgate::Engine;
use tollgate_config::Secret;
use tollgate_server::resp::{Door, Input, Options, Step, bounds};

const RULES: &str = r#"
version: 1
rules:
  - { id: log, match: { action: "a*" }, per: [user], algorithm: sliding-log, limit: 5, window: 1s }
  - { id: cost, when: 'has(attributes.n)', per: [tenant], missing: deny, algorithm: token-bucket,
      capacity: 1000, refill: 10/s, cost: 'int(n) * 2' }
  - { id: shape, match: { action: [b, c] }, algorithm: leaky-bucket, rate: 3/s, queue: 9, shape: true }
  - { id: slots, match: { action: job }, algorithm: concurrency, limit: 1000000, lease: 100ms }
"#;

fn door(password: Option<&str>) -> Arc<Door> {
    let engine = Engine::from_yaml("fuzz.yaml", RULES).expect("the rules are right");
    let options = Options {
        password: password.map(|it| Secret::new(it.to_owned())),
        ..Options::default()
    };
    Door::new(Arc::new(engine), &options)
}

static OPEN: LazyLock<Arc<Door>> = LazyLock::new(|| door(None));
static LOCKED: LazyLock<Arc<Door>> = LazyLock::new(|| door(Some("x")));

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
});

fuzz_target!(|bytes: &[u8]| {
    let Some((first, bytes)) = bytes.split_first() else {
        return;
    };
    let door = if *first == 255 { &LOCKED } else { &OPEN };
    let piece = match first {
        0 | 255 => bytes.len().max(1),
        size => usize::from(*size),
    };
    let mut conversation = door.conversation();
    let (mut input, mut out) = (Input::new(), Vec::new());
    'pieces: for piece in bytes.chunks(piece) {
        input.room().extend_from_slice(piece);
        loop {
            let step = conversation.answer(&mut input, &mut out);
            assert!(out.len() <= bounds::MAX_OUTPUT + bounds::MAX_BULK + 64);
            check(&out);
            out.clear();
            match step {
                Step::Read => break,
                Step::Write => {}
                // The future is ready at once: the store is in memory, and requests in flight are few.
                Step::Ask => {
                    RUNTIME.block_on(conversation.ask(&mut out));
                    check(&out);
                    out.clear();
                }
                Step::Close | Step::Cut => break 'pieces,
            }
        }
        // The unread rest of the input is the start of a command.
        assert!(input.unread().len() <= bounds::MAX_COMMAND);
    }
});

/// Asserts that the bytes are complete answers.
fn check(mut out: &[u8]) {
    while !out.is_empty() {
        out = answer(out);
    }
}

fn answer(out: &[u8]) -> &[u8] {
    let end = out.windows(2).position(|it| it == b"\r\n").expect("a line");
    let (line, rest) = (&out[..end], &out[end + 2..]);
    let number = || {
        let digits = std::str::from_utf8(&line[1..]).expect("digits");
        digits.parse::<i64>().expect("a number")
    };
    let many = |count: i64| (0..count).fold(rest, |rest, _| answer(rest));
    match line[0] {
        b'+' | b'-' => rest,
        b':' => {
            number();
            rest
        }
        b'_' | b'#' => rest,
        b'$' | b'=' => match usize::try_from(number()) {
            Err(_) => rest,
            Ok(length) => {
                assert_eq!(&rest[length..length + 2], b"\r\n");
                &rest[length + 2..]
            }
        },
        b'*' => many(number()),
        b'%' => many(number() * 2),
        other => panic!("an answer that starts with {other}"),
    }
}
