//! Runs `examples/llm-budget` with its ledger in a temporary directory: a gateway that reserves and settles
//! tokens, in front of a fake model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use common::Serving;
use serde_json::{Value, json};

/// A program of the example. Dropping this value kills the program.
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

/// Tollgate with the rules of the example. The periods are longer, so that they do not end during a
/// test.
struct Example {
    tollgate: Serving,
    _directory: tempfile::TempDir,
}

impl Example {
    fn start() -> Example {
        let directory = tempfile::tempdir().unwrap();
        let books = directory.path().join("llm-budget.db");
        let text = std::fs::read_to_string(example().join("tollgate.yaml")).unwrap();
        let text = text
            .replace("./llm-budget.db", books.to_str().unwrap())
            .replace("period: month", "period: year");
        let file = directory.path().join("tollgate.yaml");
        std::fs::write(&file, text).unwrap();
        Example {
            tollgate: Serving::start(&["--config", file.to_str().unwrap()]),
            _directory: directory,
        }
    }

    fn gateway(&self, model: &str, more: &[&str]) -> Program {
        let mut args = vec!["--tollgate", &self.tollgate.url, "--model", model];
        args.extend(more);
        Program::start("gateway.py", &args)
    }

    /// Returns the units that a tenant has used or reserved.
    fn used(&self, tenant: &str) -> i64 {
        let answer = ureq::get(format!("{}/v1/usage/{tenant}", self.tollgate.url)).call();
        let text = answer.unwrap().into_body().read_to_string().unwrap();
        let told: Value = serde_json::from_str(&text).unwrap();
        let rows = told["usage"].as_array().unwrap().iter();
        rows.map(|row| row["used"].as_i64().unwrap()).sum()
    }
}

/// A fake model that the test controls.
struct Model(TcpListener);

impl Model {
    fn start() -> Model {
        Model(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap())
    }

    /// Waits for the next call to the model.
    fn call(&self) -> TcpStream {
        let (mut call, _) = self.0.accept().unwrap();
        let mut some = [0];
        call.read_exact(&mut some).unwrap();
        call
    }

    /// Whether no call to the model is waiting.
    fn is_idle(&self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let idle = self.0.accept().is_err();
        self.0.set_nonblocking(false).unwrap();
        idle
    }
}

fn answer(mut call: TcpStream, body: &str) {
    let length = body.len();
    let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
    call.write_all(text.as_bytes()).unwrap();
    // Wait until the client has closed the connection: closing a socket with unread data would discard
    // the answer.
    let _ = call.shutdown(std::net::Shutdown::Write);
    let _ = call.read_to_end(&mut Vec::new());
}

struct Answer {
    status: u16,
    used: Option<String>,
    retry_after: Option<String>,
    body: Value,
}

fn chat(gateway: &str, tenant: &str, prompt: &str, max_tokens: u32) -> Answer {
    chat_with_key(gateway, None, tenant, prompt, max_tokens)
}

/// Sends a chat request with an idempotency key.
fn chat_with_key(
    gateway: &str,
    key: Option<&str>,
    tenant: &str,
    prompt: &str,
    max_tokens: u32,
) -> Answer {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into();
    let body =
        json!({ "max_tokens": max_tokens, "messages": [{ "role": "user", "content": prompt }] });
    let request = agent.post(format!("{gateway}/v1/chat/completions"));
    let mut request = request.header("X-Tenant", tenant);
    if let Some(key) = key {
        request = request.header("Idempotency-Key", key);
    }
    let mut answer = request.send(body.to_string()).unwrap();
    let header = |name: &str| {
        let value = answer.headers().get(name);
        value.map(|it| it.to_str().unwrap().to_owned())
    };
    Answer {
        status: answer.status().as_u16(),
        used: header("X-Tokens-Used"),
        retry_after: header("Retry-After"),
        body: serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap(),
    }
}

#[test]
fn tokens_are_reserved_and_settled() {
    let example = Example::start();
    let model = Program::start("model.py", &[]);
    let gateway = example.gateway(&model.url, &[]);
    let used = |tenant: &str| example.used(tenant);

    let answer = chat(
        &gateway.url,
        "acme",
        "tell me of toll gates in 40 words",
        500,
    );
    assert_eq!((answer.status, answer.used.as_deref()), (200, Some("48")));
    assert_eq!(used("acme"), 48, "the unused part is returned");

    let failed = chat(&gateway.url, "acme", "please fail", 500);
    assert_eq!(failed.status, 502);
    assert_eq!(used("acme"), 48, "a failed call costs nothing");

    let denied = chat(&gateway.url, "tiny", "tell me everything", 4000);
    assert_eq!(denied.status, 429, "{}", denied.body);
    assert_eq!(denied.body["code"], "QUOTA", "{}", denied.body);
    assert_eq!(
        denied.retry_after, None,
        "it never fits, so there is no retry time"
    );
    let everything = "tell me everything in 2000 words";
    assert_eq!(chat(&gateway.url, "tiny", everything, 2000).status, 200);
    assert_eq!(used("tiny"), 2006);
    let denied = chat(&gateway.url, "tiny", everything, 2000);
    assert_eq!(denied.status, 429, "{}", denied.body);
    assert_eq!(denied.body["code"], "QUOTA", "{}", denied.body);
    assert!(denied.retry_after.is_some(), "it fits in the next period");
    assert_eq!(used("tiny"), 2006);
}

#[test]
fn repeated_call_reaches_the_model_once() {
    let example = Example::start();
    let model = Model::start();
    let gateway = example.gateway(&model.url(), &[]);
    let url = gateway.url.clone();
    let first = thread::spawn(move || chat_with_key(&url, Some("k"), "acme", "say it", 100));
    let call = model.call();
    let repeated = chat_with_key(&gateway.url, Some("k"), "acme", "say it", 100);
    assert_eq!(
        repeated.status, 409,
        "while the first runs: {}",
        repeated.body
    );
    answer(call, r#"{"usage":{"total_tokens":7}}"#);
    assert_eq!(first.join().unwrap().status, 200);
    let repeated = chat_with_key(&gateway.url, Some("k"), "acme", "say it", 100);
    assert_eq!(repeated.status, 409, "and afterwards: {}", repeated.body);
    assert!(model.is_idle());
    assert_eq!(example.used("acme"), 7);
}

#[test]
fn tokens_are_charged_if_the_model_may_have_worked() {
    let example = Example::start();
    let model = Model::start();
    let gateway = example.gateway(&model.url(), &["--timeout", "0.5"]);
    let asking = |prompt: &'static str| {
        let url = gateway.url.clone();
        thread::spawn(move || chat(&url, "acme", prompt, 98))
    };
    let silent = asking("say nothing");
    let call = model.call();
    assert_eq!(silent.join().unwrap().status, 502);
    drop(call);
    assert_eq!(example.used("acme"), 100, "the model may have worked");

    let mumbling = asking("mumble something");
    answer(model.call(), "mumble");
    assert_eq!(mumbling.join().unwrap().status, 502);
    assert_eq!(example.used("acme"), 200, "the answer is unreadable");

    // Only root may listen on port 1, so nothing answers there.
    let nowhere = example.gateway("http://127.0.0.1:1", &[]);
    assert_eq!(chat(&nowhere.url, "acme", "hello there", 98).status, 502);
    assert_eq!(example.used("acme"), 200, "the model was not reached");
}
