//! With state in memory, a command costs no allocation once its key is known.

use std::fmt::Write;
use std::sync::Arc;

use tollgate::Engine;
use tollgate_server::resp::{Door, Input, Options, Step};

const RULES: &str = "
version: 1
rules:
  - { id: api, match: { action: search }, per: [user], algorithm: gcra, rate: 1000/s, burst: 100000 }
  - { id: day, per: [user], algorithm: fixed-window, limit: 1000000, window: 1d }
";

#[test]
fn pipeline_allocates_nothing() {
    let engine = Engine::from_yaml("rules.yaml", RULES).unwrap();
    let door = Door::new(Arc::new(engine), &Options::default());
    let mut conversation = door.conversation();
    let (mut input, mut out) = (Input::new(), Vec::new());
    let mut commands = String::new();
    for i in 0..16 {
        // Commands that are allowed, that are limited or that charge nothing, and commands that use the
        // rules.
        let _ = write!(
            commands,
            "CL.THROTTLE wide{i} 1000000 1000000 1\r\n*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$1\r\n0\r\n\
             $1\r\n1\r\n$4\r\n3600\r\nCL.THROTTLE k 0 1 3600 0\r\nTG.CHECK action search user ann\r\n\
             TG.PEEK action search user bob\r\nPING\r\n"
        );
    }
    let mut run = || {
        input.room().extend_from_slice(commands.as_bytes());
        while conversation.answer(&mut input, &mut out) != Step::Read {
            out.clear();
        }
        assert!(out.ends_with(b"+PONG\r\n"));
        out.clear();
    };
    // Keys, limits and buffers exist after the first two runs.
    run();
    run();
    let counted = allocation_counter::measure(run);
    assert_eq!(counted.count_total, 0, "{counted:?}");
}
