//! Counts that are restored after the calendar of a rule has changed.

use tollgate::{Repair, Span};

use super::QUOTA;
use super::setup::LedgerSetup;

const DAY: Span = Span::DAY;

fn days(days: u64) -> Span {
    Span::from_secs(days * 86_400)
}

// Each test begins on Tuesday the 14th of November 2023, at 22:13:20 UTC.

#[tokio::test(flavor = "multi_thread")]
async fn change_from_month_to_week_keeps_usage_for_the_current_week() {
    let weekly = QUOTA.replace("period: month", "period: week");
    let mut setup = LedgerSetup::new(QUOTA).await;
    setup.ask(300).await;
    setup.restart_with(&weekly).await;
    assert_eq!(setup.ask(100).await, Some(600), "the usage stays");
    assert_eq!(setup.reconcile(Repair::Nothing).await.drifts, []);
    setup.restart().await;
    assert_eq!(setup.ask(0).await, Some(600));
    // The next week is in the same month.
    setup.clock.advance(days(6));
    assert_eq!(setup.ask(0).await, Some(1000));
    setup.restart().await;
    assert_eq!(
        setup.ask(10).await,
        Some(990),
        "the restored count is the same"
    );
    assert_eq!(setup.reconcile(Repair::Nothing).await.drifts, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn change_from_week_to_month_keeps_the_usage_of_the_current_week() {
    let weekly = QUOTA.replace("period: month", "period: week");
    let mut setup = LedgerSetup::new(&weekly).await;
    setup.ask(700).await;
    setup.clock.advance(days(7));
    setup.ask(300).await;
    setup.restart_with(QUOTA).await;
    assert_eq!(
        setup.ask(100).await,
        Some(600),
        "the usage of the current week counts"
    );
    assert_eq!(setup.reconcile(Repair::Nothing).await.drifts, []);
    setup.restart().await;
    assert_eq!(setup.ask(0).await, Some(600));
}

#[tokio::test(flavor = "multi_thread")]
async fn change_of_time_zone_keeps_usage() {
    let daily = QUOTA.replace("period: month", "period: day");
    let berlin = daily.replace("period: day", "period: day\n    timezone: Europe/Berlin");
    let mut setup = LedgerSetup::new(&daily).await;
    setup.ask(300).await;
    setup.restart_with(&berlin).await;
    assert_eq!(setup.ask(100).await, Some(600));
    setup.restart().await;
    assert_eq!(setup.ask(0).await, Some(600));
    assert_eq!(setup.reconcile(Repair::Nothing).await.drifts, []);
    // Midnight in Berlin is an hour before midnight in UTC.
    setup.clock.advance(Span::from_secs(3000));
    setup.restart().await;
    assert_eq!(setup.ask(10).await, Some(990));
    setup.clock.advance(DAY);
    setup.restart().await;
    assert_eq!(setup.ask(10).await, Some(990));
}

#[tokio::test(flavor = "multi_thread")]
async fn changing_the_calendar_back_keeps_usage() {
    let weekly = QUOTA.replace("period: month", "period: week");
    let mut setup = LedgerSetup::new(&weekly).await;
    setup.ask(200).await;
    // That week has ended when the rule changes to months.
    setup.clock.advance(days(7));
    setup.restart_with(QUOTA).await;
    assert_eq!(setup.ask(900).await, Some(100));
    setup.clock.advance(DAY);
    setup.restart_with(&weekly).await;
    assert_eq!(setup.ask(0).await, Some(100), "the usage stays");
    assert_eq!(setup.reconcile(Repair::Nothing).await.drifts, []);
}
