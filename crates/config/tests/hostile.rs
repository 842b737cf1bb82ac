//! Configs made to exhaust stack, memory or time. Each is rejected or accepted within a minute.

use std::time::Duration;

use tollgate_config::{Attributes, parse};
use tollgate_core::Keyring;

/// Parses a config, compiles it and explains a request, on a thread with the stack size of server
/// threads.
fn survives(name: &'static str, text: String) {
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::Builder::new()
        .stack_size(2 * 1024 * 1024)
        .spawn(move || {
            match parse("x.yaml", &text, &|_| None) {
                Err(error) => drop((error.to_string(), error.render_color())),
                Ok(config) => {
                    let rules = config.compile(Keyring::new(b"0123456789abcdef", "x"), &[]);
                    let _ = rules.explain(&Attributes::from([("a", "1"), ("b", "x")]));
                }
            }
            done.send(()).ok()
        })
        .ok();
    let finished = finished.recv_timeout(Duration::from_secs(60));
    assert!(finished.is_ok(), "{name} does not finish");
}

fn with(field: &str, value: &str) -> String {
    let value = value.replace('\'', "''");
    format!(
        "version: 1\nrules:\n  - id: a\n    algorithm: gcra\n    rate: 1/s\n    {field}: '{value}'\n"
    )
}

#[test]
fn long_expressions_are_bounded() {
    let repeat = |part: &str| part.repeat(2040 / part.len());
    survives("sum", with("cost", &format!("{}1", repeat("1+"))));
    survives("sum of 90", with("cost", &format!("{}1", "1+".repeat(90))));
    survives("or", with("when", &format!("{}true", repeat("a==b||"))));
    survives("ternary", with("cost", &format!("{}1", repeat("true?1:"))));
    survives(
        "ternary of 40",
        with("cost", &format!("{}1", "a==b?1:".repeat(40))),
    );
    survives("nested ternary", with("cost", &repeat("true?")));
    survives("select", with("when", &format!("a{}", repeat(".a"))));
    survives("call", with("when", &format!("a{}", repeat(".size()"))));
    survives("index", with("when", &format!("a{}", repeat("[1]"))));
    survives("not", with("when", &format!("{}true", repeat("!"))));
    survives("minus", with("cost", &format!("{}1", repeat("-"))));
    survives("brackets", with("cost", &repeat("(")));
    survives("closing brackets", with("cost", &repeat(")(")));
    survives(
        "24 brackets",
        with("cost", &format!("{}1{}", "(".repeat(24), ")".repeat(24))),
    );
    survives(
        "24 lists",
        with(
            "when",
            &format!("{}{} == []", "[".repeat(24), "]".repeat(24)),
        ),
    );
    survives(
        "24 calls",
        with("cost", &format!("{}1{}", "int(".repeat(24), ")".repeat(24))),
    );
    survives("quotes", with("when", &repeat("\"")));
    survives("list", with("when", &format!("a in [{}1]", repeat("1,"))));
    survives("comparisons", with("when", &format!("{}a", repeat("a<"))));
    let nested = "[a].all(x, ".repeat(20) + "true" + &")".repeat(20);
    survives("macros", with("when", &nested));
    survives("errors", with("when", &repeat("@ ")));
    survives("letters", with("when", &repeat("é")));
}

#[test]
fn large_files_are_bounded() {
    let megabytes = 4 * 1024 * 1024 - 100;
    survives("spaces", " ".repeat(megabytes));
    survives("open lists", "[".repeat(megabytes));
    survives("open maps", "{a: ".repeat(megabytes / 4));
    survives("dashes", "- ".repeat(megabytes / 2));
    survives("question marks", "? ".repeat(megabytes / 2));
    survives("one line", format!("a: {}", "b".repeat(megabytes)));
    survives("unknown fields", "a: b\n".repeat(megabytes / 5));
    survives(
        "items",
        format!("version: 1\nrules: [{}]", "a,".repeat(400_000)),
    );
    survives(
        "per",
        format!("version: 1\nrules: [{{ per: [{}] }}]", "a,".repeat(20_000)),
    );
    survives("anchors", "- &a b\n- *a\n".repeat(100_000));
    let long = "redis://h:".repeat(100_000);
    survives(
        "a long secret many times",
        format!("password: [&a '{long}', {}]\nx: *a", "*a,".repeat(900_000)),
    );
    survives("a long URL", format!("a: [\n{long}"));
    let urls = "'redis://h', ".repeat(100_000);
    survives(
        "URLs",
        format!("version: 1\nstore: {{ redis: {{ mode: cluster, urls: [{urls}] }} }}"),
    );
    let zone = |n: usize| format!("  t{n}: {{ timezone: Europe/Berlin{n} }}\n");
    let zones: String = (0..20_000).map(zone).collect();
    survives(
        "zones that there are not",
        format!("version: 1\nrules: []\ntenants:\n{zones}"),
    );
    let zone = |n: usize| format!("  t{n}: {{ timezone: Etc/GMT+{} }}\n", n % 12);
    let zones: String = (0..20_000).map(zone).collect();
    let quota = "{ id: q, per: [tenant], algorithm: quota, limit: 1, period: day }";
    survives(
        "zones",
        format!("version: 1\nrules: [{quota}]\ntenants:\n{zones}"),
    );
    let rule = |n: usize| {
        format!(
            "  - {{ id: r{n}, match: {{ a{n}: x }}, per: [b{n}], algorithm: gcra, rate: 1/s }}\n"
        )
    };
    let rules: String = (0..20_000).map(rule).collect();
    survives("rules", format!("version: 1\nrules:\n{rules}"));
}

/// Texts that fuzzing found interesting (`fuzz/fuzz_targets/config.rs`).
#[test]
fn the_corpus_does_not_panic() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    let mut count = 0;
    for file in std::fs::read_dir(corpus).expect("the corpus is there") {
        let bytes = std::fs::read(file.expect("a file").path()).expect("it can be read");
        survives("corpus", String::from_utf8_lossy(&bytes).into_owned());
        count += 1;
    }
    assert!(count >= 50, "{count} of the corpus");
}
