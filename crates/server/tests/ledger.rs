//! The ledger at the admin door: usage, postings, and roles.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use common::config_file::ConfigFileServer;
use common::{Answer, get};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tollgate_ledger::{Entry, EntryId, EntryQuery};
use tollgate_rig::Postgres;

const RULES: &str = "
rules:
  - { id: yearly, match: { action: [search, export] }, per: [tenant], algorithm: quota, limit: 100, period: year }
  - { id: users, match: { action: search }, per: [tenant, user], algorithm: quota, limit: 10, period: year, timezone: Europe/Berlin }
  - { id: rate, per: [tenant], algorithm: fixed-window, limit: 1000000, window: 1d }
";

fn start(ledger: &str, tokens: &[(&str, &str)]) -> ConfigFileServer {
    let folder = tempfile::tempdir().unwrap();
    let ledger = ledger.replace("FOLDER", &folder.path().display().to_string());
    let tokens = tokens.iter().map(|(name, role)| {
        let digest = Sha256::digest(name);
        let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        json!({ "name": name, "role": role, "sha256": hash })
    });
    let tokens = json!(tokens.collect::<Vec<_>>());
    let server = match tokens.as_array().unwrap().is_empty() {
        true => String::new(),
        false => {
            format!("server: {{ admin: {{ address: \"127.0.0.1:0\", tokens: {tokens} }} }}\n")
        }
    };
    let secret = "subjects: { hash_secret: 0123456789abcdef }\n";
    let yaml = format!("version: 1\n{server}{secret}{ledger}{RULES}");
    let path = folder.path().join("rules.yaml");
    std::fs::write(&path, yaml).unwrap();
    ConfigFileServer::at(folder, &path)
}

fn with_sqlite() -> ConfigFileServer {
    start("ledger: { sqlite: FOLDER/books.db }\n", &[])
}

fn search(server: &ConfigFileServer, tenant: &str, user: &str) {
    let attributes = json!({ "action": "search", "tenant": tenant, "user": user });
    assert_eq!(server.check(&attributes.to_string()).status, 200);
}

fn read(server: &ConfigFileServer, path: &str) -> Value {
    let answer = server.ask("", path, None);
    assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    answer.json()
}

fn text(server: &ConfigFileServer, path: &str, accept: &str) -> Answer {
    let url = format!("http://{}{path}", server.admin);
    get(&url, &[("accept", accept)])
}

fn post(server: &ConfigFileServer, path: &str, body: &Value) -> Answer {
    server.ask("", path, Some(&body.to_string()))
}

fn posting(amount: i64) -> Value {
    json!({
        "attributes": { "tenant": "acme", "action": "search" }, "rule": "yearly", "amount": amount,
        "reason": "counted twice",
    })
}

/// The tenant `acme` has carried units over; the rules of the budget share one allowance.
const SHARED: &str = "
version: 1
subjects: { hash_secret: 0123456789abcdef }
ledger: { sqlite: FOLDER/books.db }
budgets:
  tokens: { per: [tenant], algorithm: quota, limit: 100, period: year, carry_over: 50 }
  all: { algorithm: quota, limit: 1000, period: year }
rules:
  - { id: chat, match: { action: [chat, draw] }, budget: tokens, cost: 10 }
  - { id: embed, match: { action: embed }, budget: tokens, cost: 1 }
  - { id: everyone, match: { action: chat }, budget: all }
";

#[test]
fn quotas_add_up_the_actions_and_rules_of_an_allowance() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    let yaml = SHARED.replace("FOLDER", &folder.path().display().to_string());
    std::fs::write(&path, yaml).unwrap();
    let server = ConfigFileServer::at(folder, &path);
    for (tenant, action) in [
        ("acme", "chat"),
        ("acme", "draw"),
        ("acme", "embed"),
        ("zed", "chat"),
    ] {
        let attributes = json!({ "action": action, "tenant": tenant });
        assert_eq!(server.check(&attributes.to_string()).status, 200);
    }
    let granted = post(
        &server,
        "/v1/ledger/grants",
        &json!({
            "attributes": { "tenant": "acme", "action": "chat" }, "rule": "chat", "amount": 30, "reason": "a gift",
        }),
    );
    assert_eq!(granted.status, 200, "{}", granted.text);
    // Each action and rule has its row of usage, but there is one allowance.
    let usage = read(&server, "/v1/ledger/usage?tenant=acme");
    assert_eq!(usage["usage"].as_array().unwrap().len(), 4, "{usage}");
    let quotas = read(&server, "/v1/ledger/quotas");
    let rows = quotas["quotas"].as_array().unwrap();
    let of = |tenant: &str, allowance: &str| {
        let found = |it: &&Value| it["tenant"] == tenant && it["allowance"] == allowance;
        assert_eq!(rows.iter().filter(found).count(), 1, "{quotas}");
        rows.iter().find(found).unwrap()
    };
    assert_eq!(rows.len(), 4, "{quotas}");
    let acme = of("acme", "tokens");
    assert_eq!(
        [
            &acme["used"],
            &acme["usedOfAvailable"],
            &acme["available"],
            &acme["granted"]
        ],
        [21, 21, 130, 30]
    );
    assert_eq!([&acme["counters"], &acme["carriedOver"]], [1, 0]);
    assert_eq!(acme["rules"], json!(["chat", "embed"]));
    assert_eq!(of("zed", "tokens")["used"], 10);
    // Both tenants use one counter.
    let all = of("acme", "all");
    assert_eq!(
        [&all["used"], &all["usedOfAvailable"], &all["available"]],
        [1, 2, 1000]
    );
    assert_eq!(
        read(&server, "/v1/ledger/quotas?limit=1")["isCut"],
        json!(true)
    );
    assert_eq!(
        read(&server, "/v1/ledger/quotas?tenant=zed")["quotas"]
            .as_array()
            .unwrap()
            .len(),
        2
    );

    let history = read(&server, "/v1/ledger/burndown?tenant=acme&rule=tokens");
    let points = history["points"].as_array().unwrap();
    assert_eq!(points.len(), 60);
    let last = points.last().unwrap();
    assert_eq!([&last["used"], &last["granted"]], [21, 30]);
    let changes = history["changes"].as_array().unwrap();
    assert_eq!((changes.len(), &changes[0]["why"]), (1, &json!("a gift")));
    let nothing = read(&server, "/v1/ledger/burndown?tenant=nobody&rule=tokens");
    assert_eq!(nothing["points"], json!([]));
    let missing = server.ask("", "/v1/ledger/burndown?tenant=acme", None);
    assert_eq!(missing.status, 400);
}

#[test]
fn units_carried_over_are_available() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    let yaml = SHARED.replace("FOLDER", &folder.path().display().to_string());
    std::fs::write(&path, yaml).unwrap();
    let server = ConfigFileServer::at(folder, &path);
    let chat = json!({ "action": "chat", "tenant": "acme" });
    assert_eq!(server.check(&chat.to_string()).status, 200);
    let accounts = server.control.engine().accounts().unwrap();
    let query = EntryQuery {
        to: tollgate::Time::MAX,
        ..EntryQuery::default()
    };
    let entries = server.block_on(accounts.entries(&query)).unwrap();
    let (_, entry) = entries
        .iter()
        .find(|(_, it)| &*it.allowance == "tokens")
        .unwrap();
    // In the year before, 60 of 100 units were used, and at most 50 are carried over.
    let year = entry.period.end.as_micros() - entry.period.start.as_micros();
    let before = Entry {
        id: EntryId(4712),
        at: tollgate::Time::from_micros(entry.period.start.as_micros() - year / 2),
        period: tollgate_ledger::Period {
            start: tollgate::Time::from_micros(entry.period.start.as_micros() - year),
            end: entry.period.start,
        },
        amount: 60,
        ..entry.clone()
    };
    server
        .block_on(accounts.ledger().write(vec![before]))
        .unwrap();
    let quotas = read(&server, "/v1/ledger/quotas?tenant=acme");
    let rows = quotas["quotas"].as_array().unwrap();
    let tokens = rows.iter().find(|it| it["allowance"] == "tokens").unwrap();
    assert_eq!(
        [
            &tokens["used"],
            &tokens["available"],
            &tokens["carriedOver"]
        ],
        [10, 140, 40],
        "{quotas}"
    );
}

/// Adds `amount` to the first counter in the ledger, but not in the store.
fn drift(server: &ConfigFileServer, amount: i64) {
    let accounts = server.control.engine().accounts().unwrap();
    let query = EntryQuery {
        to: tollgate::Time::MAX,
        ..EntryQuery::default()
    };
    let entries = server.block_on(accounts.entries(&query)).unwrap();
    let (_, entry) = entries
        .iter()
        .find(|(_, entry)| &*entry.rule == "yearly")
        .unwrap();
    let entry = Entry {
        id: EntryId(4711),
        amount,
        ..entry.clone()
    };
    let written = server.block_on(accounts.ledger().write(vec![entry]));
    written.unwrap();
}

#[test]
fn usage_is_listed_by_action_rule_and_period() {
    let server = with_sqlite();
    for user in ["ann", "bob", "bob"] {
        search(&server, "acme", user);
    }
    search(&server, "zed", "ann");
    let usage = read(&server, "/v1/ledger/usage?tenant=acme&period=");
    assert_eq!(usage["isCut"], false);
    let rows = usage["usage"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{usage}");
    let of = |rule: &str| rows.iter().find(|it| it["rule"] == rule).unwrap();
    let users = of("users");
    assert_eq!(
        [
            &users["used"],
            &users["counters"],
            &users["limit"],
            &users["requests"]
        ],
        [3, 2, 10, 3]
    );
    let yearly = of("yearly");
    assert_eq!(
        [&yearly["used"], &yearly["counters"], &yearly["limit"]],
        [3, 1, 100]
    );
    assert_eq!(
        (&yearly["action"], &yearly["tenant"]),
        (&json!("search"), &json!("acme"))
    );

    // The name of a period finds it again, and the next period is empty.
    let period = yearly["period"].as_str().unwrap();
    let named = read(
        &server,
        &format!("/v1/ledger/usage?rule=yearly&period={period}"),
    );
    assert_eq!(named["usage"].as_array().unwrap().len(), 2, "{named}");
    let year = users["period"].as_str().unwrap();
    let named = read(
        &server,
        &format!("/v1/ledger/usage?rule=users&period={year}"),
    );
    assert_eq!(named["usage"].as_array().unwrap().len(), 2, "{named}");
    let other = read(&server, "/v1/ledger/usage?period=2001-01");
    assert_eq!(other["usage"], json!([]));
    let cut = read(&server, "/v1/ledger/usage?limit=1");
    assert_eq!(
        (cut["usage"].as_array().unwrap().len(), &cut["isCut"]),
        (1, &json!(true))
    );
}

#[test]
fn entries_come_in_pages_and_as_a_whole() {
    let server = with_sqlite();
    for tenant in ["acme", "=cmd()", "a,\"b\""] {
        search(&server, tenant, "ann");
    }
    let (mut after, mut entries) = (json!(0), Vec::new());
    while let Some(number) = after.as_u64() {
        let page = read(
            &server,
            &format!("/v1/ledger/entries?limit=1&after={number}"),
        );
        entries.extend(page["entries"].as_array().unwrap().clone());
        after = page["next"].clone();
    }
    assert_eq!(entries.len(), 6, "{entries:?}");
    assert!(
        entries
            .iter()
            .all(|it| it["kind"] == "use" && it["amount"] == 1)
    );
    let one = read(&server, "/v1/ledger/entries?tenant=acme");
    assert_eq!(one["entries"].as_array().unwrap().len(), 2);
    assert_eq!(one["next"], Value::Null);

    let lines = text(&server, "/v1/ledger/entries?format=jsonl", "*/*");
    assert_eq!(lines.header("content-type"), "application/x-ndjson");
    let parsed = lines.text.lines().map(serde_json::from_str);
    let parsed: Vec<Value> = parsed.map(Result::unwrap).collect();
    assert_eq!(parsed, entries);

    let csv = text(&server, "/v1/ledger/usage", "text/csv");
    assert_eq!(
        csv.header("content-type"),
        "text/csv; charset=utf-8; header=present"
    );
    let mut rows = csv.text.split_terminator("\r\n");
    assert_eq!(
        rows.next().unwrap(),
        "tenant,action,rule,allowance,period,period_start,period_end,used,reserved,granted,corrections,\
         requests,counters,limit"
    );
    let rows: Vec<&str> = rows.collect();
    assert_eq!(rows.len(), 6, "{}", csv.text);
    let begins = |text: &str| rows.iter().filter(|row| row.starts_with(text)).count();
    assert_eq!(begins("acme,search,"), 2);
    assert_eq!(begins("'=cmd(),search,"), 2, "no formula: {}", csv.text);
    assert_eq!(begins("\"a,\"\"b\"\"\",search,"), 2, "{}", csv.text);
}

#[test]
fn corrections_and_grants_are_in_the_ledger_and_in_the_audit_trail() {
    let server = with_sqlite();
    for _ in 0..5 {
        search(&server, "acme", "ann");
    }
    let answer = post(&server, "/v1/ledger/corrections", &posting(-2));
    assert_eq!(answer.status, 200, "{}", answer.text);
    let standing = answer.json();
    assert_eq!(
        [&standing["used"], &standing["limit"], &standing["extra"]],
        [3, 100, 0]
    );
    let mut grant = posting(50);
    grant["idempotencyKey"] = json!("ticket-1");
    for (repeated, place) in [(false, "first"), (true, "second")] {
        let answer = post(&server, "/v1/ledger/grants", &grant).json();
        assert_eq!(answer["extra"], 50, "{place}: {answer}");
        assert_eq!(answer["repeated"], repeated, "{place}");
    }
    // Another amount, kind or counter under the same key is rejected, and changes nothing.
    let mut others = [grant.clone(), grant.clone(), grant.clone()];
    others[0]["amount"] = json!(51);
    others[1]["attributes"]["tenant"] = json!("zed");
    for (path, body) in [
        ("grants", &others[0]),
        ("grants", &others[1]),
        ("corrections", &others[2]),
    ] {
        let answer = post(&server, &format!("/v1/ledger/{path}"), body);
        assert_eq!(answer.status, 409, "{}", answer.text);
        let told = answer.json();
        assert_eq!(told["code"], "POSTING_CONFLICT");
        let message = told["message"].as_str().unwrap();
        assert!(message.contains("`ticket-1`"), "{message}");
        assert!(message.contains("a grant of 50"), "{message}");
    }
    let usage = read(&server, "/v1/ledger/usage?rule=yearly");
    let row = &usage["usage"][0];
    assert_eq!(
        [&row["used"], &row["granted"], &row["corrections"]],
        [3, 50, -2]
    );
    let entries = read(&server, "/v1/ledger/entries?tenant=acme");
    let entries = entries["entries"].as_array().unwrap();
    let of = |kind: &str| entries.iter().find(|it| it["kind"] == kind).unwrap();
    assert_eq!(
        (&of("correction")["who"], &of("correction")["why"]),
        (&json!("anonymous"), &json!("counted twice"))
    );
    assert_eq!(of("grant")["idempotencyKey"], "ticket-1");

    let trail = server.trail("what=ledger");
    let whats: Vec<&Value> = trail.iter().map(|it| &it["what"]).collect();
    assert_eq!(whats, ["ledger.grant", "ledger.correction"], "once each");
    assert_eq!(trail[1]["why"], "counted twice");
    assert_eq!(trail[1]["to"]["amount"], -2);
    let rules = trail[1]["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 1, "{rules:?}");
    assert_eq!(rules[0]["rule"], "yearly");
    assert!(!trail[1].to_string().contains("acme"), "{}", trail[1]);
}

#[test]
fn audit_trail_is_that_of_all_instances() {
    let postgres = Postgres::start();
    let url = postgres.database("books");
    let ledger = format!("ledger: {{ postgres: \"{url}\", spill: FOLDER/spill }}\n");
    let (one, other) = (start(&ledger, &[]), start(&ledger, &[]));
    for (server, amount) in [(&one, 1), (&other, 2)] {
        let answer = post(server, "/v1/ledger/corrections", &posting(amount));
        assert_eq!(answer.status, 200, "{}", answer.text);
        // The entries of other instances arrive after their flush interval.
        let accounts = server.control.engine().accounts().unwrap();
        server.block_on(accounts.ledger().flush()).unwrap();
    }
    for server in [&one, &other] {
        let trail = server.trail("what=ledger");
        let amounts: Vec<&Value> = trail.iter().map(|it| &it["to"]["amount"]).collect();
        assert_eq!(amounts, [&json!(2), &json!(1)], "each once: {trail:?}");
    }
    // Without the ledger, each instance has its own trail, and says that there may be more.
    postgres.kill();
    let answer = one.ask("", "/v1/audit?what=ledger", None);
    assert_eq!(answer.json()["entries"].as_array().unwrap().len(), 1);
    assert_eq!(answer.json()["isCut"], true);
}

#[test]
fn drift_is_reported_and_repaired_as_asked() {
    for (direction, used) in [("counters", 8), ("ledger", 3)] {
        let server = with_sqlite();
        for _ in 0..3 {
            search(&server, "acme", "ann");
        }
        let agree = post(&server, "/v1/ledger/reconcile", &json!({})).json();
        assert_eq!(
            (&agree["compared"], &agree["drifts"]),
            (&json!(2), &json!([])),
            "{agree}"
        );
        drift(&server, 5);
        let other = json!({ "tenant": "zed" });
        let other = post(&server, "/v1/ledger/reconcile", &other).json();
        assert_eq!(other["drifts"], json!([]));
        for (repair, repaired) in [("none", false), (direction, true)] {
            let body = json!({ "tenant": "acme", "repair": repair, "reason": "a test" });
            let found = post(&server, "/v1/ledger/reconcile", &body).json();
            let drift = &found["drifts"][0];
            assert_eq!(
                (&drift["tenant"], &drift["rule"], &drift["repaired"]),
                (&json!("acme"), &json!("yearly"), &json!(repaired)),
                "{found}"
            );
            assert_eq!([&drift["ledger"], &drift["store"]], [8, 3], "{found}");
            let extra = [&drift["ledgerExtra"], &drift["storeExtra"]];
            assert_eq!(extra, [0, 0], "{found}");
        }
        let agree = post(&server, "/v1/ledger/reconcile", &json!({})).json();
        assert_eq!(agree["drifts"], json!([]), "{direction}");
        // A correction of the ledger belongs to no action.
        let usage = read(&server, "/v1/ledger/usage?rule=yearly");
        let rows = usage["usage"].as_array().unwrap().iter();
        let sum: i64 = rows.map(|it| it["used"].as_i64().unwrap()).sum();
        assert_eq!(sum, used, "{direction}: {usage}");
        let trail = server.trail("what=ledger.reconcile");
        assert_eq!(trail.len(), 1, "only a repair changes something");
        assert_eq!(trail[0]["to"]["repair"], direction);
        assert_eq!(trail[0]["to"]["repaired"], 1);
        assert_eq!(trail[0]["why"], "a test");
    }
}

#[test]
fn ledger_reports_its_status() {
    let server = with_sqlite();
    search(&server, "acme", "ann");
    read(&server, "/v1/ledger/usage");
    let status = read(&server, "/v1/ledger");
    assert_eq!(status["database"], "sqlite");
    assert_eq!(status["isConnected"], true);
    assert_eq!(
        [
            &status["lagMillis"],
            &status["queuedEntries"],
            &status["spilledEntries"]
        ],
        [0, 0, 0]
    );
    assert_eq!(status["writtenEntries"], 2);
    assert_eq!(status["lastError"], Value::Null);
}

#[test]
fn postgres_works_the_same_and_hides_its_password() {
    let postgres = Postgres::start();
    let url = postgres.database("books");
    let server = start(&format!("ledger: {{ postgres: \"{url}\" }}\n"), &[]);
    for _ in 0..3 {
        search(&server, "acme", "ann");
    }
    let status = server.ask("", "/v1/ledger", None);
    assert_eq!(status.json()["database"], "postgres");
    assert!(!status.text.contains('@'), "{}", status.text);
    let answer = post(&server, "/v1/ledger/corrections", &posting(-2));
    assert_eq!(answer.json()["used"], 1, "{}", answer.text);
    let usage = read(&server, "/v1/ledger/usage?tenant=acme&rule=yearly");
    assert_eq!(usage["usage"][0]["used"], 1, "{usage}");
    let csv = text(&server, "/v1/ledger/entries?format=csv", "*/*");
    assert!(
        csv.text
            .contains(",correction,-2,0,,anonymous,counted twice,\r\n"),
        "{}",
        csv.text
    );
    let agree = post(&server, "/v1/ledger/reconcile", &json!({})).json();
    assert_eq!(agree["drifts"], json!([]), "{agree}");
    // The database is gone: the status says so, and nothing hangs.
    postgres.kill();
    let gone = server.ask("", "/v1/ledger/usage", None);
    assert_eq!(gone.status, 503, "{}", gone.text);
    assert_eq!(gone.json()["code"], "LEDGER_UNAVAILABLE");
    let message = gone.json()["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("the ledger "), "{message}");
    assert!(message.ends_with("; try again later"), "{message}");
    assert!(!gone.text.contains('@'), "{}", gone.text);
}

#[test]
fn bad_requests_are_rejected_and_change_nothing() {
    let server = with_sqlite();
    search(&server, "acme", "ann");
    let with = |name: &str, value: Value| {
        let mut body = posting(1);
        body[name] = value;
        body
    };
    let long = "x".repeat(1000);
    for (body, status, said) in [
        (with("amount", json!(0)), 400, "the amount must be"),
        (with("amount", json!(1.5)), 400, "i64"),
        (with("amount", json!(i64::MIN)), 400, "the amount must be"),
        (with("reason", json!(" ")), 400, "the reason is missing"),
        (with("reason", Value::Null), 400, "the reason is missing"),
        (with("reason", json!("a\0b")), 400, "NUL"),
        (with("reason", json!(long)), 400, "at most 500"),
        (with("idempotencyKey", json!("")), 400, "is empty"),
        (with("idempotencyKey", json!(long)), 400, "longer than 256"),
        (with("rule", json!("rate")), 404, "no ledgered rule `rate`"),
        (with("rule", json!("nothing")), 404, "`nothing`"),
        (
            with("attributes", json!({ "tenant": "acme" })),
            404,
            "`per`",
        ),
        (with("why", json!("because")), 400, "unknown field"),
    ] {
        let answer = post(&server, "/v1/ledger/corrections", &body);
        assert_eq!(answer.status, status, "{body}: {}", answer.text);
        assert!(answer.text.contains(said), "{body}: {}", answer.text);
    }
    let negative = post(&server, "/v1/ledger/grants", &posting(-1));
    assert_eq!(negative.status, 400, "{}", negative.text);
    for (path, said) in [
        ("/v1/ledger/usage?period=2026-13", "`period` must be a year"),
        ("/v1/ledger/usage?who=me", "use `tenant`"),
        ("/v1/ledger/entries?limit=0", "from 1 to 10000"),
        ("/v1/ledger/entries?format=xlsx", "json, csv or jsonl"),
    ] {
        let answer = server.ask("", path, None);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        assert!(answer.text.contains(said), "{path}: {}", answer.text);
    }
    let body = json!({ "repair": "everything" });
    let answer = post(&server, "/v1/ledger/reconcile", &body);
    assert_eq!(answer.status, 400, "{}", answer.text);
    let usage = read(&server, "/v1/ledger/usage?rule=yearly");
    assert_eq!(usage["usage"][0]["used"], 1);
    assert_eq!(server.trail("what=ledger"), [] as [Value; 0]);
}

#[test]
fn without_a_ledger_every_path_is_409() {
    let server = start("", &[]);
    let reconcile = json!({});
    for (path, body) in [
        ("/v1/ledger", None),
        ("/v1/ledger/usage", None),
        ("/v1/ledger/entries?format=csv", None),
        ("/v1/ledger/corrections", Some(posting(1))),
        ("/v1/ledger/grants", Some(posting(1))),
        ("/v1/ledger/reconcile", Some(reconcile)),
    ] {
        let body = body.map(|body| body.to_string());
        let answer = server.ask("", path, body.as_deref());
        assert_eq!(answer.status, 409, "{path}: {}", answer.text);
        assert_eq!(answer.json()["code"], "NO_LEDGER");
    }
}

#[test]
fn reading_and_writing_need_different_roles() {
    let roles = [("grafana", "read"), ("support", "operate")];
    let server = start("ledger: { sqlite: FOLDER/books.db }\n", &roles);
    search(&server, "acme", "ann");
    let report = json!({ "repair": "none" }).to_string();
    let repair = json!({ "repair": "counters" }).to_string();
    let posting = posting(1).to_string();
    for (path, body, reader) in [
        ("/v1/ledger", None, 200),
        ("/v1/ledger/usage", None, 200),
        ("/v1/ledger/entries?format=csv", None, 200),
        ("/v1/ledger/reconcile", Some(&report), 200),
        ("/v1/ledger/reconcile", Some(&repair), 403),
        ("/v1/ledger/corrections", Some(&posting), 403),
        ("/v1/ledger/grants", Some(&posting), 403),
    ] {
        let body = body.map(String::as_str);
        assert_eq!(server.ask("nobody", path, body).status, 401, "{path}");
        let answer = server.ask("grafana", path, body);
        assert_eq!(answer.status, reader, "{path}: {}", answer.text);
        let answer = server.ask("support", path, body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    }
    let entries = server.ask("grafana", "/v1/ledger/entries", None).json();
    let who = entries["entries"].as_array().unwrap().iter();
    let who: Vec<&Value> = who.map(|it| &it["who"]).collect();
    assert!(who.contains(&&json!("support")), "{who:?}");
}
