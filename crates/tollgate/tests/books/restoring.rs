//! What is done to a count that has to be restored first, and what is given back.

use futures_util::future::join;
use tollgate::{Ask, Attributes, Clock, HoldName, Reserve, ReserveOutcome, Span};
use tollgate_store::HoldState;

use super::QUOTA;
use super::setup::{Books, acme, reserve};

#[tokio::test(flavor = "multi_thread")]
async fn an_overrun_is_bounded_by_what_was_used_before_a_restart() {
    let rules = QUOTA.replace("period: month", "period: month\n    overdraft: 100");
    let mut books = Books::new(&rules).await;
    let hold = reserve(&books, 300, None).await;
    books.restart().await;
    let settled = books.limiter.commit(&hold.id, 5000).await.unwrap();
    assert_eq!((settled.actual, settled.uncharged), (Some(5000), 3900));
    assert_eq!(
        (books.used().await, books.counter().await.used),
        (1100, 1100)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_and_a_restore_at_once_agree() {
    let books = Books::new(QUOTA).await;
    for round in 1..=30 {
        for actual in [12, 0, 30] {
            let hold = reserve(&books, 20, None).await;
            books.lose_counts();
            let (asked, settled) = join(books.ask(1), books.limiter.commit(&hold.id, actual)).await;
            assert!(asked.is_some() && settled.is_ok(), "{asked:?} {settled:?}");
            let used = i64::try_from(books.counter().await.used).unwrap();
            assert_eq!(used, books.used().await, "round {round}, {actual}");
        }
        books.limiter.reset(&acme()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_is_given_back_to_a_count_that_is_restored_first() {
    let mut books = Books::new(QUOTA).await;
    books.ask(100).await;
    reserve(&books, 500, Some("call-1")).await;
    books.restart().await;
    // Found by its key, and so known to the store; the count is lost once more.
    reserve(&books, 500, Some("call-1")).await;
    books.lose_counts();
    books.clock.advance(Span::from_secs(61));
    assert_eq!(books.limiter.sweep_holds().await.unwrap(), 1);
    assert_eq!((books.counter().await.used, books.used().await), (100, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_reservations_that_can_be_repeated_come_back_with_a_count() {
    let mut books = Books::new(QUOTA).await;
    let plain = reserve(&books, 1, None).await;
    let keyed = reserve(&books, 1, Some("call-1")).await;
    let ended = reserve(&books, 1, Some("call-2")).await;
    books.limiter.commit(&ended.id, 1).await.unwrap();
    books.restart().await;
    books.ask(1).await;
    let found = |name: &HoldName| match name {
        HoldName::Held(id) => books.limiter.inner().find_hold(*id),
        other => panic!("{other:?}"),
    };
    assert!(found(&plain.id).is_none());
    assert!(found(&keyed.id).is_some());
    assert_eq!(found(&ended.id).unwrap().state, HoldState::Consumed);
    // Whoever names it finds it, and what nobody names ends all the same.
    books.limiter.extend(&plain.id, Span::MINUTE).await.unwrap();
    books.clock.advance(Span::from_secs(200));
    books.sweep().await;
    assert_eq!((books.used().await, books.counter().await.used), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_takes_nothing_that_is_reserved() {
    let books = Books::new(QUOTA).await;
    books.ask(30).await;
    let hold = reserve(&books, 500, None).await;
    let now = books.clock.now();
    books.limiter.refund(&acme(), 400, now).await.unwrap();
    assert_eq!((books.used().await, books.counter().await.used), (500, 500));
    books.limiter.commit(&hold.id, 120).await.unwrap();
    assert_eq!((books.used().await, books.counter().await.used), (120, 120));
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_of_one_budget_give_back_what_was_used_once() {
    let rules = "
  - { id: chat, match: { action: chat }, budget: tokens }
  - { id: all, budget: tokens }
budgets: { tokens: { per: [tenant], algorithm: quota, limit: 1000, period: month } }
";
    let books = Books::new(rules).await;
    books.ask(50).await;
    assert_eq!((books.used().await, books.counter().await.used), (100, 100));
    let now = books.clock.now();
    books.limiter.refund(&acme(), 70, now).await.unwrap();
    assert_eq!((books.used().await, books.counter().await.used), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_on_sight_does_not_make_a_store_fail() {
    let rules = format!(
        "{QUOTA}\n  - {{ id: users, per: [user], missing: deny, algorithm: gcra, rate: 5/s }}"
    );
    let books = Books::new(&rules).await;
    let decision = books.limiter.ask(&acme(), Ask::Exactly(1)).await;
    assert!(!decision.is_allowed());
    let quota = decision
        .rules()
        .find(|it| it.rule().id() == "monthly")
        .unwrap();
    assert_eq!(quota.remaining(), Some(1000), "{decision:?}");
    assert_eq!(books.counter().await.used, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_that_took_nothing_gets_nothing_back() {
    let rules = format!(
        "{QUOTA}\n  - {{ id: tried, state: shadow, per: [tenant], algorithm: fixed-window, limit: 5, window: 30d }}"
    );
    let books = Books::new(&rules).await;
    assert!(books.ask(5).await.is_some());
    books.ledger().close().await;
    assert_eq!(books.ask(3).await, None, "it cannot be noted");
    let looked = books.limiter.peek(&acme(), Ask::Exactly(0)).await;
    let tried = looked.rules().find(|it| it.rule().id() == "tried").unwrap();
    assert_eq!(tried.remaining(), Some(0));
    assert_eq!(books.counter().await.used, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_short_way_tells_what_the_policy_goes_on_from() {
    let rules = QUOTA.replace("fail-closed", "cached");
    let books = Books::new(&rules).await;
    for _ in 0..7 {
        assert!(books.ask(100).await.is_some());
    }
    books.ledger().close().await;
    assert_eq!(books.ask(400).await, None, "700 are known to be used");
    assert!(books.ask(300).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_without_the_ledger_takes_no_rule_out_of_the_books() {
    let mut books = Books::new(QUOTA).await;
    books.ask(100).await;
    let text = format!(
        "version: 1\nsubjects: {{ hash_secret: a secret of sixteen bytes }}\nrules:{QUOTA}"
    );
    let without = tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap();
    let reloaded = books.limiter.reload(&without);
    assert_eq!(reloaded.needs_restart, ["ledger"]);
    books.ask(200).await;
    assert_eq!(books.used().await, 300);
    books.restart().await;
    assert_eq!(books.ask(0).await, Some(700));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_reservations_come_back_page_by_page() {
    let rules = QUOTA.replace("1000", "1000000");
    let mut books = Books::new(&rules).await;
    let keys: Vec<String> = (0..1_200).map(|it| format!("call-{it}")).collect();
    for key in &keys {
        reserve(&books, 1, Some(key)).await;
    }
    books.restart().await;
    for key in &keys {
        let wish = Reserve {
            units: 1,
            idempotency_key: Some(key),
            ..Reserve::default()
        };
        let again = books.limiter.reserve(&acme(), &wish).await.unwrap();
        assert!(matches!(again, ReserveOutcome::Held { decision: None, .. }));
    }
    assert_eq!(books.counter().await.used, 1_200);
    let other = Attributes::from([("tenant", "corp")]);
    assert!(
        books
            .limiter
            .ask(&other, Ask::Exactly(1))
            .await
            .is_allowed()
    );
}
