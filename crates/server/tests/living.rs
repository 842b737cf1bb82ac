//! Plans, budgets, overrides and candidates, as clients and operators see them.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use common::config_file::ConfigFileServer;
use serde_json::{Value, json};
use tollgate_server::control::Outcome;

const RULES: &str = "
version: 1
budgets:
  compute: { per: [tenant], algorithm: fixed-window, limit: 10, window: 30d }
plans:
  pro: { api: { limit: 50 }, compute: { limit: 100 } }
tenants: { acme: { plan: pro } }
headers: { families: [ietf, ratelimit, x-ratelimit] }
tenant_files: [tenants.d]
rules:
  - { id: api, match: { action: api }, per: [tenant], algorithm: fixed-window, limit: 5, window: 30d }
  - { id: next, candidate_of: api, algorithm: fixed-window, limit: 3, window: 30d }
  - { id: search, match: { action: search }, budget: compute, cost: 4 }
  - { id: export, match: { action: export }, budget: compute, cost: 9 }
";

fn start() -> ConfigFileServer {
    start_in(tempfile::tempdir().unwrap())
}

fn start_in(folder: tempfile::TempDir) -> ConfigFileServer {
    std::fs::create_dir(folder.path().join("tenants.d")).unwrap();
    std::fs::write(
        folder.path().join("tenants.d/a.yaml"),
        "corp: { plan: pro }\n",
    )
    .unwrap();
    let path = folder.path().join("rules.yaml");
    std::fs::write(&path, RULES).unwrap();
    ConfigFileServer::at(folder, &path)
}

fn of(tenant: &str, action: &str) -> String {
    json!({ "tenant": tenant, "action": action }).to_string()
}

#[test]
fn plan_is_in_the_headers() {
    let server = start();
    let of_plan = server.check(&of("acme", "api"));
    assert_eq!(
        of_plan.header("ratelimit-policy"),
        r#""api";q=50;w=2592000"#
    );
    assert_eq!(of_plan.header("x-ratelimit-limit"), "50");
    let without = server.check(&of("zed", "api"));
    assert_eq!(without.header("ratelimit-policy"), r#""api";q=5;w=2592000"#);
}

#[test]
fn budget_is_shared_by_several_rules() {
    let server = start();
    let first = server.check(&of("zed", "search"));
    assert_eq!((first.status, &first.json()["remaining"]), (200, &json!(6)));
    let refused = server.check(&of("zed", "export"));
    assert_eq!(refused.status, 429);
    let told = refused.json();
    assert_eq!(told["code"], "BUDGET");
    assert_eq!(
        (&told["kind"], &told["ruleId"]),
        (&json!("budget"), &json!("export"))
    );
    let more = server.check(&of("acme", "export"));
    assert_eq!(more.json()["remaining"], 91);
}

#[test]
fn tenants_come_and_go_with_their_files() {
    let server = start();
    let limit = |tenant: &str| server.check(&of(tenant, "api")).json()["limit"].clone();
    assert_eq!((limit("corp"), limit("newt")), (json!(50), json!(5)));
    assert!(server.look().is_none());
    let directory = server.folder.path().join("tenants.d");
    std::fs::write(directory.join("b.csv"), "tenant,plan,api.limit\nnewt,,70\n").unwrap();
    let change = server.look().unwrap().unwrap();
    assert_eq!(change.outcome, Outcome::Applied);
    assert_eq!((limit("corp"), limit("newt")), (json!(50), json!(70)));
    // The file is watched from now on.
    std::fs::write(
        directory.join("b.csv"),
        "tenant,plan,api.limit\nnewt,,71 \n",
    )
    .unwrap();
    server.look().unwrap().unwrap();
    assert_eq!(limit("newt"), json!(71));
    assert!(server.look().is_none());
    std::fs::write(directory.join("b.csv"), "tenant,plan\nnewt,gold\n").unwrap();
    let refused = server.look().unwrap().unwrap_err().to_string();
    assert!(
        refused.contains("b.csv:2:6: there is no plan `gold`"),
        "{refused}"
    );
    assert_eq!(limit("newt"), json!(71));
}

#[test]
fn file_of_a_rejected_config_is_watched() {
    let server = start();
    let (file, directory) = (server.folder.path().join("new.yaml"), server.folder.path());
    std::fs::write(&file, "newt: { plan: gold }\n").unwrap();
    server.write(&RULES.replace("[tenants.d]", "[tenants.d, new.yaml, more.d]"));
    std::fs::create_dir(directory.join("more.d")).unwrap();
    let refused = server.look().unwrap().unwrap_err().to_string();
    assert!(refused.contains("new.yaml:1:15"), "{refused}");
    assert!(server.look().is_none(), "told once");
    // Another mistake, in a file that did not exist before.
    std::fs::write(&file, "newt: { plan: pro }\n").unwrap();
    std::fs::write(directory.join("more.d/z.yaml"), "newt: {}\n").unwrap();
    let refused = server.look().unwrap().unwrap_err().to_string();
    assert!(refused.contains("z.yaml:1:1"), "{refused}");
    std::fs::remove_file(directory.join("more.d/z.yaml")).unwrap();
    assert_eq!(server.look().unwrap().unwrap().outcome, Outcome::Applied);
    assert_eq!(server.check(&of("newt", "api")).json()["limit"], 50);
    assert!(server.look().is_none());
    assert_eq!(server.control.reloads()[2], ("refused", 2));
}

#[test]
fn unreadable_override_is_listed_and_can_be_cleared() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    let odd = json!({ "tenant:odd/api": { "tenant": "odd", "rule": "api", "reason": "x\u{7f}y", "author": "ann" } });
    let file = folder
        .path()
        .join("data")
        .join(tollgate_server::overrides::FILE);
    std::fs::write(&file, odd.to_string()).unwrap();
    let server = start_in(folder);
    let set = json!({ "tenant": "zed", "scale": "50%", "reason": "a demo" });
    let set = server.ask("", "/v1/overrides", Some(&set.to_string()));
    assert_eq!(set.status, 200, "{}", set.text);
    let listed = server.ask("", "/v1/overrides", None).json();
    let seen = &listed["overrides"][0];
    assert_eq!(seen["name"], "tenant:odd/api");
    assert_eq!(
        (&seen["tenant"], &seen["author"]),
        (&json!("odd"), &json!("ann"))
    );
    let idle = seen["idle"].as_str().unwrap();
    assert!(
        idle.starts_with("the override cannot be read: override"),
        "{idle}"
    );
    assert_eq!(listed["overrides"][1]["idle"], Value::Null);
    let url = format!("http://{}/v1/overrides?name=tenant:odd/api", server.admin);
    let mut cleared = ureq::delete(&url).call().unwrap();
    let cleared: Value = cleared.body_mut().read_json().unwrap();
    assert_eq!(cleared["idle"], idle);
    let listed = server.ask("", "/v1/overrides", None).json();
    assert_eq!(listed["overrides"].as_array().unwrap().len(), 1);
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(
        !kept.contains("odd") && kept.contains("tenant:zed/*"),
        "{kept}"
    );
}

#[test]
fn operators_override_and_see_the_result() {
    let server = start();
    let set = |body: Value| server.ask("", "/v1/overrides", Some(&body.to_string()));
    let limit = |tenant: &str| server.check(&of(tenant, "api")).json()["limit"].clone();
    let answer = set(
        json!({ "tenant": "zed", "rule": "api", "numbers": { "limit": 9 }, "for": "1h", "reason": "a demo" }),
    );
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json()["name"], "tenant:zed/api");
    assert_eq!(answer.json()["effect"], "limit 9");
    assert_eq!(limit("zed"), json!(9));
    let everyone = set(json!({ "scale": "20%", "for": "10m", "reason": "fire" }));
    assert_eq!(everyone.status, 200, "{}", everyone.text);
    assert_eq!((limit("zed"), limit("acme")), (json!(1), json!(10)));
    let explained = json!({ "attributes": { "tenant": "acme", "action": "api" } });
    let explained = server.ask("", "/v1/explain", Some(&explained.to_string()));
    let line = explained.json()["rules"][0].as_str().unwrap().to_owned();
    let decision = explained.json()["decision"].clone();
    assert_eq!(
        line,
        format!(
            "api: applies, cost 1, per tenant: limit 50 (plan pro), window 30d (rule), \
             scale 20% (override everyone/*: fire); fixed-window: 10 at once, all back in 30d; \
             subject {}; allows, {} of 10 left",
            &decision["subject"].as_str().unwrap()[..8],
            decision["remaining"]
        )
    );
    assert_eq!(decision["rules"][0]["limit"], 10);
    let listed = server.ask("", "/v1/overrides", None).json();
    let names: Vec<&str> = listed["overrides"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["everyone/*", "tenant:zed/api"]);

    for (body, code) in [
        (json!({}), "BAD_OVERRIDE"),
        (json!([]), "BAD_OVERRIDE"),
        (
            json!({ "tenant": "zed", "scale": "5%", "reason": "x\u{7f}y" }),
            "BAD_OVERRIDE",
        ),
        (
            json!({ "tenant": "zed", "scale": "5%", "reason": "x", "author": "boss" }),
            "BAD_OVERRIDE",
        ),
        (
            json!({ "plan": "gold", "scale": "5%", "reason": "x" }),
            "NO_EFFECT",
        ),
    ] {
        let refused = set(body);
        assert_eq!(refused.status, 422, "{}", refused.text);
        assert_eq!(refused.json()["code"], code);
    }
    let clear = |query: &str| {
        let url = format!("http://{}/v1/overrides?{query}", server.admin);
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .into();
        agent.delete(&url).call().unwrap().status().as_u16()
    };
    assert_eq!(clear("name=everyone/*&reason=over"), 200);
    assert_eq!(clear("name=everyone/*"), 404);
    assert_eq!(clear("nome=everyone/*"), 400);
    assert_eq!(clear("name=a&name=b"), 400);
    assert_eq!(limit("zed"), json!(9));
    // Overrides survive a reload.
    server.write(&RULES.replace("limit: 5,", "limit: 6,"));
    server.look().unwrap().unwrap();
    assert_eq!((limit("zed"), limit("yan")), (json!(9), json!(6)));
}

#[test]
fn candidates_are_compared() {
    let server = start();
    for _ in 0..6 {
        server.check(&of("zed", "api"));
        server.check(&of("acme", "api"));
    }
    let compared = server.ask("", "/v1/candidates", None).json();
    let row = |plan: Value, counts: [u64; 4]| {
        json!({
            "candidate": "next", "current": "api", "plan": plan,
            "bothAllow": counts[0], "refusesMore": counts[1], "bothRefuse": counts[2], "refusesFewer": counts[3],
        })
    };
    assert_eq!(
        compared["candidates"],
        json!([
            row(Value::Null, [3, 2, 1, 0]),
            row(json!("pro"), [3, 3, 0, 0])
        ])
    );
    let page = server.get("/metrics").text;
    let line = r#"rate_limit_candidate_checks_total{rule="next",candidate_of="api",plan="pro",outcome="refuses_more"} 3"#;
    assert!(page.contains(line), "{page}");
}
