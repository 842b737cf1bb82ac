//! The RESP door with common clients.

mod resp_door;

use std::process::Command;

use resp_door::{Door, RULES, run};
use tollgate_config::Secret;
use tollgate_rig::clients;
use tollgate_server::resp::Options;
use tollgate_server::tls::{Tls, TlsFiles};

#[test]
fn redis_cli_speaks_both_protocols() {
    let door = Door::start();
    for protocol in ["-2", "-3"] {
        let told = door.cli(&[protocol, "CL.THROTTLE", protocol, "15", "30", "60"]);
        assert_eq!(told, "0\n16\n15\n-1\n2\n");
        assert_eq!(door.cli(&[protocol, "PING"]), "PONG\n");
        let info = door.cli(&[protocol, "INFO", "server"]);
        assert!(info.contains("tollgate_version:"), "{info}");
    }
    let formatted = door.cli(&[
        "--no-raw", "-3", "TG.PEEK", "action", "search", "user", "ann",
    ]);
    assert!(
        formatted.contains("\"remaining\" => (integer) 3"),
        "{formatted}"
    );
    assert!(formatted.contains("\"allowed\" => (true)"), "{formatted}");
    let docs = door.cli(&["--json", "-3", "COMMAND", "DOCS", "cl.throttle"]);
    assert!(docs.contains("Charges a key"), "{docs}");
    let infos = door.cli(&["--json", "-3", "COMMAND", "INFO", "cl.throttle", "nothing"]);
    assert!(infos.starts_with("[[\"cl.throttle\",-5,"), "{infos}");
    assert!(infos.trim_end().ends_with(",null]"), "{infos}");
}

#[test]
fn redis_cli_logs_in_over_tls() {
    let files = tempfile::tempdir().unwrap();
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (files.path().join("cert.pem"), files.path().join("key.pem"));
    std::fs::write(&cert, signed.cert.pem()).unwrap();
    std::fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
    let tls = TlsFiles {
        cert: cert.clone(),
        key,
        client_ca: None,
    };
    let options = Options {
        password: Some(Secret::new("secret".to_owned())),
        ..Options::default()
    };
    let door = Door::with(RULES, options, Some(Tls::new(tls, &[]).unwrap()));
    let cert = cert.to_str().unwrap();
    let tls = [
        "--tls",
        "--cacert",
        cert,
        "--sni",
        "localhost",
        "--no-auth-warning",
    ];
    let ask = |more: &[&str]| door.cli(&[&tls[..], more].concat());
    assert_eq!(ask(&["-a", "secret", "PING"]), "PONG\n");
    assert_eq!(
        ask(&["--user", "default", "--pass", "secret", "ECHO", "hi"]),
        "hi\n"
    );
    assert_eq!(ask(&["PING"]), "NOAUTH Authentication required.\n\n");
    // More commands than one TLS record holds.
    let mut pipe = Command::new("sh");
    let script = r#"yes "CL.THROTTLE k 1 1 1" | head -n 5000 | redis-cli "$@" | wc -l"#;
    pipe.args(["-c", script, "sh", "-p", &door.address.port().to_string()]);
    assert_eq!(run(pipe.args(tls).args(["-a", "secret"])).trim(), "25000");
}

#[test]
fn redis_benchmark_works() {
    let door = Door::start();
    let mut benchmark = Command::new("redis-benchmark");
    benchmark.args(["-p", &door.address.port().to_string()]);
    benchmark.args(["-n", "20000", "-c", "50", "-P", "16", "-r", "1000", "--csv"]);
    benchmark.args(["CL.THROTTLE", "key:__rand_int__", "9", "10", "3600"]);
    let output = benchmark.output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        complaint, "",
        "it asks CONFIG GET, and complains if that fails"
    );
    let counts = door.engine.metrics().throttles();
    assert_eq!(counts.allowed + counts.limited, 20_000);
    // Each of a thousand keys allows ten at once, and nothing refills in time.
    assert!((9_000..=10_000).contains(&counts.allowed), "{counts:?}");
}

const PYTHON: &str = r#"
import sys, redis
port = int(sys.argv[1])
for protocol in (2, 3):
    r = redis.Redis(port=port, password="secret", protocol=protocol, client_name="tests",
                    decode_responses=True)
    assert r.ping()
    assert r.client_getname() == "tests"
    assert r.info("server")["redis_mode"] == "standalone"
    assert r.config_get("save") == {"save": ""}
    assert r.execute_command("CL.THROTTLE", f"py{protocol}", 15, 30, 60) == [0, 16, 15, -1, 2]
    told = r.execute_command("TG.CHECK", "action", "search", "user", f"py{protocol}")
    if protocol == 2:
        told = dict(zip(told[::2], told[1::2]))
    assert told["allowed"] == (protocol == 3 or 1), told
    assert (told["ruleId"], told["remaining"], told["fallback"]) == ("api", 2, None), told
    p = r.pipeline(transaction=False)
    for _ in range(100):
        p.execute_command("CL.THROTTLE", f"pipe{protocol}", 9, 10, 3600)
    limited = [answer[0] for answer in p.execute()]
    assert limited == [0] * 10 + [1] * 90, limited
    try:
        r.execute_command("CL.THROTTLE", "k", 1, 0, 60)
        raise SystemExit("no error")
    except redis.ResponseError as error:
        assert "count must be above 0" in str(error), error
    r.close()
try:
    redis.Redis(port=port, password="wrong").ping()
    raise SystemExit("no error")
except redis.AuthenticationError:
    pass
print("ok")
"#;

#[test]
fn redis_py_works() {
    let options = Options {
        password: Some(Secret::new("secret".to_owned())),
        ..Options::default()
    };
    let door = Door::with(RULES, options, None);
    let port = door.address.port().to_string();
    assert_eq!(run(clients::python().args(["-c", PYTHON, &port])), "ok\n");
}

const NODE: &str = r#"
const assert = require("node:assert");
const { Redis } = require("ioredis");
(async () => {
  const redis = new Redis({ port: Number(process.argv[1]), password: "secret", connectionName: "tests" });
  assert.equal(await redis.ping(), "PONG");
  assert.equal(await redis.client("GETNAME"), "tests");
  assert.deepEqual(await redis.call("CL.THROTTLE", "js", 15, 30, 60), [0, 16, 15, -1, 2]);
  const told = await redis.call("TG.CHECK", "action", "search", "user", "js");
  assert.deepEqual(told.slice(0, 8), ["allowed", 1, "ruleId", "api", "limit", 3, "remaining", 2]);
  const pipeline = redis.pipeline();
  for (let i = 0; i < 100; i++) pipeline.call("CL.THROTTLE", "pipe", 9, 10, 3600);
  const answers = await pipeline.exec();
  assert.equal(answers.filter(([error, answer]) => error === null && answer[0] === 0).length, 10);
  await assert.rejects(redis.call("CL.THROTTLE", "k", 1, 0, 60), /count must be above 0/);
  await redis.quit();
  console.log("ok");
})();
"#;

#[test]
fn ioredis_works() {
    let options = Options {
        password: Some(Secret::new("secret".to_owned())),
        ..Options::default()
    };
    let door = Door::with(RULES, options, None);
    let port = door.address.port().to_string();
    assert_eq!(run(clients::node().args(["-e", NODE, &port])), "ok\n");
}
