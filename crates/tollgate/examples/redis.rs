//! Several instances share one limit in Redis. A failure policy decides while Redis does not answer.
//!
//! `cargo run -p tollgate --features redis --example redis -- redis://127.0.0.1:6379`

#![allow(clippy::print_stdout, reason = "the example shows what happens")]

use tollgate::{Attributes, Engine};

type Error = Box<dyn std::error::Error>;

const CONFIG: &str = r#"
version: 1
namespace: "${NAMESPACE}"
store:
  redis: { url: "${REDIS_URL}" }
subjects:
  hash_secret: "${HASH_SECRET}"
rules:
  - id: search
    match: { action: search }
    per: [tenant]
    algorithm: gcra
    rate: 100/h
    burst: 3
    on_store_failure: fail-open
"#;

#[tokio::main]
pub(crate) async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1);
    run(&url.unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned())).await
}

pub(crate) async fn run(url: &str) -> Result<(), Error> {
    // Each run has its own counts. A real service always uses the same namespace.
    let namespace = format!("example-{}", std::process::id());
    let env = |name: &str| match name {
        "REDIS_URL" => Some(url.to_owned()),
        "NAMESPACE" => Some(namespace.clone()),
        "HASH_SECRET" => Some("the same secret in all instances".to_owned()),
        _ => None,
    };
    let config = tollgate::parse("config.yaml", CONFIG, &env)?;

    // Two instances, as if on two machines.
    let (one, two) = (Engine::start(&config).await?, Engine::start(&config).await?);
    let acme = Attributes::from([("action", "search"), ("tenant", "acme")]);
    for (name, instance) in [("one", &one), ("two", &two), ("one", &one), ("two", &two)] {
        let decision = instance.check(&acme).await;
        let remaining = decision.rule().and_then(|it| it.remaining()).unwrap_or(0);
        let said = match decision.is_allowed() {
            true => "allowed",
            false => "denied",
        };
        println!("instance {name}: {said}, {remaining} left");
    }
    assert!(!one.check(&acme).await.is_allowed());

    // This server does not answer. The rule fails open, and the decision says so.
    let env = |name: &str| match name {
        "REDIS_URL" => Some("redis://127.0.0.1:1".to_owned()),
        _ => env(name),
    };
    let config = tollgate::parse("config.yaml", CONFIG, &env)?;
    let alone = Engine::start_unchecked(&config)?;
    let decision = alone.check(&acme).await;
    let policy = decision.fallback().map_or("no policy", |it| it.name());
    println!("without Redis: allowed by the policy {policy}");
    assert!(decision.is_allowed() && decision.fallback().is_some());
    Ok(())
}
