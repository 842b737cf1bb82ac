//! `examples/llm-budget` as it stands, but for where its ledger is: a gateway that reserves and settles
//! tokens, in front of a stand-in for a model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::Serving;
use serde_json::{Value, json};

/// A program of the example. It ends with this value.
struct Program {
    child: Child,
    url: String,
}

impl Program {
    fn start(name: &str, args: &[&str]) -> Program {
        let mut child = Command::new("python3")
            .arg(example().join(name))
            .arg("0")
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("python3: {error}; apt-get install -y python3"));
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let (_, url) = line.trim().split_once(" on ").unwrap();
        Program {
            child,
            url: url.to_owned(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/llm-budget")
}

struct Answer {
    status: u16,
    used: Option<String>,
    body: Value,
}

fn chat(gateway: &str, tenant: &str, prompt: &str, max_tokens: u32) -> Answer {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into();
    let body =
        json!({ "max_tokens": max_tokens, "messages": [{ "role": "user", "content": prompt }] });
    let request = agent.post(format!("{gateway}/v1/chat/completions"));
    let answer = request.header("X-Tenant", tenant).send(body.to_string());
    let mut answer = answer.unwrap();
    let used = answer.headers().get("X-Tokens-Used");
    Answer {
        status: answer.status().as_u16(),
        used: used.map(|it| it.to_str().unwrap().to_owned()),
        body: serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap(),
    }
}

#[test]
fn tokens_are_reserved_and_settled() {
    let directory = tempfile::tempdir().unwrap();
    let books = directory.path().join("llm-budget.db");
    let text = std::fs::read_to_string(example().join("tollgate.yaml")).unwrap();
    let text = text.replace("./llm-budget.db", books.to_str().unwrap());
    let file = directory.path().join("tollgate.yaml");
    std::fs::write(&file, text).unwrap();
    let tollgate = Serving::start(&["--config", file.to_str().unwrap()]);
    let model = Program::start("model.py", &[]);
    let gateway = ["--tollgate", &tollgate.url, "--model", &model.url];
    let gateway = Program::start("gateway.py", &gateway);
    let used = |tenant: &str| -> i64 {
        let answer = ureq::get(format!("{}/v1/usage/{tenant}", tollgate.url)).call();
        let text = answer.unwrap().into_body().read_to_string().unwrap();
        let told: Value = serde_json::from_str(&text).unwrap();
        let rows = told["usage"].as_array().unwrap().iter();
        rows.map(|row| row["used"].as_i64().unwrap()).sum()
    };

    let answer = chat(
        &gateway.url,
        "acme",
        "tell me of toll gates in 40 words",
        500,
    );
    assert_eq!((answer.status, answer.used.as_deref()), (200, Some("48")));
    assert_eq!(used("acme"), 48, "the rest is back");

    let failed = chat(&gateway.url, "acme", "please fail", 500);
    assert_eq!(failed.status, 502);
    assert_eq!(used("acme"), 48, "and all of what failed");

    let refused = chat(&gateway.url, "tiny", "tell me everything", 4000);
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert_eq!(refused.body["code"], "QUOTA", "{}", refused.body);
    for _ in 0..5 {
        assert_eq!(
            chat(&gateway.url, "tiny", "say it in 500 words", 600).status,
            200
        );
    }
    assert_eq!(used("tiny"), 5 * 505);
    let refused = chat(&gateway.url, "tiny", "say it in 500 words", 600);
    assert_eq!(
        refused.status, 429,
        "an estimate that does not fit any more"
    );
}
