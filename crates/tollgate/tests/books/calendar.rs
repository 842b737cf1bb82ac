//! Counts that are restored after a rule was given another calendar.

use tollgate::{Repair, Span};

use super::QUOTA;
use super::setup::Books;

const DAY: Span = Span::DAY;

fn days(days: u64) -> Span {
    Span::from_secs(days * 86_400)
}

// The books begin on Tuesday the 14th of November 2023, at 22:13:20 UTC.

#[tokio::test(flavor = "multi_thread")]
async fn what_was_used_in_the_month_counts_in_the_week_that_follows_it_and_in_no_other() {
    let weekly = QUOTA.replace("period: month", "period: week");
    let mut books = Books::new(QUOTA).await;
    books.ask(300).await;
    books.restart_with(&weekly).await;
    assert_eq!(books.ask(100).await, Some(600), "what was used stays used");
    assert_eq!(books.reconcile(Repair::Nothing).await.drifts, []);
    books.restart().await;
    assert_eq!(books.ask(0).await, Some(600));
    // In the week after, the month goes on.
    books.clock.advance(days(6));
    assert_eq!(books.ask(0).await, Some(1000));
    books.restart().await;
    assert_eq!(
        books.ask(10).await,
        Some(990),
        "restored as it would have been"
    );
    assert_eq!(books.reconcile(Repair::Nothing).await.drifts, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_used_in_the_week_counts_in_the_month() {
    let weekly = QUOTA.replace("period: month", "period: week");
    let mut books = Books::new(&weekly).await;
    books.ask(700).await;
    books.clock.advance(days(7));
    books.ask(300).await;
    books.restart_with(QUOTA).await;
    assert_eq!(books.ask(100).await, Some(600), "of the week in force");
    assert_eq!(books.reconcile(Repair::Nothing).await.drifts, []);
    books.restart().await;
    assert_eq!(books.ask(0).await, Some(600));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_time_zone_is_another_calendar() {
    let daily = QUOTA.replace("period: month", "period: day");
    let berlin = daily.replace("period: day", "period: day\n    timezone: Europe/Berlin");
    let mut books = Books::new(&daily).await;
    books.ask(300).await;
    books.restart_with(&berlin).await;
    assert_eq!(books.ask(100).await, Some(600));
    books.restart().await;
    assert_eq!(books.ask(0).await, Some(600));
    assert_eq!(books.reconcile(Repair::Nothing).await.drifts, []);
    // At midnight in Berlin, when the day in UTC has an hour left.
    books.clock.advance(Span::from_secs(3000));
    books.restart().await;
    assert_eq!(books.ask(10).await, Some(990));
    books.clock.advance(DAY);
    books.restart().await;
    assert_eq!(books.ask(10).await, Some(990));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_calendar_that_is_changed_back_forgets_nothing() {
    let weekly = QUOTA.replace("period: month", "period: week");
    let mut books = Books::new(&weekly).await;
    books.ask(200).await;
    // That week has ended when the month comes.
    books.clock.advance(days(7));
    books.restart_with(QUOTA).await;
    assert_eq!(books.ask(900).await, Some(100));
    books.clock.advance(DAY);
    books.restart_with(&weekly).await;
    assert_eq!(books.ask(0).await, Some(100), "what was used stays used");
    assert_eq!(books.reconcile(Repair::Nothing).await.drifts, []);
}
