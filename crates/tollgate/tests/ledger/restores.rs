//! Commits, refunds and expiries when the count must be restored first.

use futures_util::future::join;
use tollgate::{Ask, Attributes, Clock, HoldName, Reserve, ReserveOutcome, Span};
use tollgate_store::HoldState;

use super::QUOTA;
use super::setup::{LedgerSetup, acme, reserve};

#[tokio::test(flavor = "multi_thread")]
async fn overdraft_bound_includes_usage_before_a_restart() {
    let rules = QUOTA.replace("period: month", "period: month\n    overdraft: 100");
    let mut setup = LedgerSetup::new(&rules).await;
    let hold = reserve(&setup, 300, None).await;
    setup.restart().await;
    let settled = setup.limiter.commit(&hold.id, 5000).await.unwrap();
    assert_eq!((settled.actual, settled.uncharged), (Some(5000), 3900));
    assert_eq!(
        (setup.used().await, setup.counter().await.used),
        (1100, 1100)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_commit_and_restore_agree() {
    let setup = LedgerSetup::new(QUOTA).await;
    for round in 1..=30 {
        for actual in [12, 0, 30] {
            let hold = reserve(&setup, 20, None).await;
            setup.lose_counts();
            let (asked, settled) = join(setup.ask(1), setup.limiter.commit(&hold.id, actual)).await;
            assert!(asked.is_some() && settled.is_ok(), "{asked:?} {settled:?}");
            let used = i64::try_from(setup.counter().await.used).unwrap();
            assert_eq!(used, setup.used().await, "round {round}, {actual}");
        }
        setup.limiter.reset(&acme()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_reservation_is_given_back_after_a_restore() {
    let mut setup = LedgerSetup::new(QUOTA).await;
    setup.ask(100).await;
    reserve(&setup, 500, Some("call-1")).await;
    setup.restart().await;
    // The repeat brings the reservation back into the store. Then the count is lost once more.
    reserve(&setup, 500, Some("call-1")).await;
    setup.lose_counts();
    setup.clock.advance(Span::from_secs(61));
    assert_eq!(setup.limiter.sweep_holds().await.unwrap(), 1);
    assert_eq!((setup.counter().await.used, setup.used().await), (100, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_reservations_with_a_key_are_restored_with_a_count() {
    let mut setup = LedgerSetup::new(QUOTA).await;
    let plain = reserve(&setup, 1, None).await;
    let keyed = reserve(&setup, 1, Some("call-1")).await;
    let ended = reserve(&setup, 1, Some("call-2")).await;
    setup.limiter.commit(&ended.id, 1).await.unwrap();
    setup.restart().await;
    setup.ask(1).await;
    let found = |name: &HoldName| match name {
        HoldName::Held(id) => setup.limiter.inner().find_hold(*id),
        other => panic!("{other:?}"),
    };
    assert!(found(&plain.id).is_none());
    assert!(found(&keyed.id).is_some());
    assert_eq!(found(&ended.id).unwrap().state, HoldState::Consumed);
    // The ledger finds a reservation by its id. It ends the reservation that no call names.
    setup.limiter.extend(&plain.id, Span::MINUTE).await.unwrap();
    setup.clock.advance(Span::from_secs(200));
    setup.sweep().await;
    assert_eq!((setup.used().await, setup.counter().await.used), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn refund_does_not_touch_reserved_units() {
    let setup = LedgerSetup::new(QUOTA).await;
    setup.ask(30).await;
    let hold = reserve(&setup, 500, None).await;
    let now = setup.clock.now();
    setup.limiter.refund(&acme(), 400, now).await.unwrap();
    assert_eq!((setup.used().await, setup.counter().await.used), (500, 500));
    setup.limiter.commit(&hold.id, 120).await.unwrap();
    assert_eq!((setup.used().await, setup.counter().await.used), (120, 120));
}

#[tokio::test(flavor = "multi_thread")]
async fn refund_of_a_shared_budget_is_bounded_by_its_usage() {
    let rules = "
  - { id: chat, match: { action: chat }, budget: tokens }
  - { id: all, budget: tokens }
budgets: { tokens: { per: [tenant], algorithm: quota, limit: 1000, period: month } }
";
    let setup = LedgerSetup::new(rules).await;
    setup.ask(50).await;
    assert_eq!((setup.used().await, setup.counter().await.used), (100, 100));
    let now = setup.clock.now();
    setup.limiter.refund(&acme(), 70, now).await.unwrap();
    assert_eq!((setup.used().await, setup.counter().await.used), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn denial_before_the_store_is_not_a_store_failure() {
    let rules = format!(
        "{QUOTA}\n  - {{ id: users, per: [user], missing: deny, algorithm: gcra, rate: 5/s }}"
    );
    let setup = LedgerSetup::new(&rules).await;
    let decision = setup.limiter.ask(&acme(), Ask::Exactly(1)).await;
    assert!(!decision.is_allowed());
    let quota = decision
        .rules()
        .find(|it| it.rule().id() == "monthly")
        .unwrap();
    assert_eq!(quota.remaining(), Some(1000), "{decision:?}");
    assert_eq!(setup.counter().await.used, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_recording_refunds_only_rules_that_took_units() {
    let rules = format!(
        "{QUOTA}\n  - {{ id: tried, state: shadow, per: [tenant], algorithm: fixed-window, limit: 5, window: 30d }}"
    );
    let setup = LedgerSetup::new(&rules).await;
    assert!(setup.ask(5).await.is_some());
    setup.ledger().close().await;
    assert_eq!(setup.ask(3).await, None, "the ledger is closed");
    let looked = setup.limiter.peek(&acme(), Ask::Exactly(0)).await;
    let tried = looked.rules().find(|it| it.rule().id() == "tried").unwrap();
    assert_eq!(tried.remaining(), Some(0));
    assert_eq!(setup.counter().await.used, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_policy_continues_from_the_last_count() {
    let rules = QUOTA.replace("fail-closed", "cached");
    let setup = LedgerSetup::new(&rules).await;
    for _ in 0..7 {
        assert!(setup.ask(100).await.is_some());
    }
    setup.ledger().close().await;
    assert_eq!(setup.ask(400).await, None, "700 are used");
    assert!(setup.ask(300).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_without_ledger_section_keeps_recording() {
    let mut setup = LedgerSetup::new(QUOTA).await;
    setup.ask(100).await;
    let text = format!(
        "version: 1\nsubjects: {{ hash_secret: a secret of sixteen bytes }}\nrules:{QUOTA}"
    );
    let without = tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap();
    let reloaded = setup.limiter.reload(&without);
    assert_eq!(reloaded.needs_restart, ["ledger"]);
    setup.ask(200).await;
    assert_eq!(setup.used().await, 300);
    setup.restart().await;
    assert_eq!(setup.ask(0).await, Some(700));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_reservations_are_restored() {
    let rules = QUOTA.replace("1000", "1000000");
    let mut setup = LedgerSetup::new(&rules).await;
    let keys: Vec<String> = (0..1_200).map(|it| format!("call-{it}")).collect();
    for key in &keys {
        reserve(&setup, 1, Some(key)).await;
    }
    setup.restart().await;
    for key in &keys {
        let request = Reserve {
            units: 1,
            idempotency_key: Some(key),
            ..Reserve::default()
        };
        let again = setup.limiter.reserve(&acme(), &request).await.unwrap();
        assert!(matches!(again, ReserveOutcome::Held { decision: None, .. }));
    }
    assert_eq!(setup.counter().await.used, 1_200);
    let other = Attributes::from([("tenant", "corp")]);
    assert!(
        setup
            .limiter
            .ask(&other, Ask::Exactly(1))
            .await
            .is_allowed()
    );
}
