//! `POST /v1/advise`: ten answers lead to a rule, as in `tollgate advise`.

use std::sync::Arc;

use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use tollgate::Span;
use tollgate_rules::document::duration;
use tollgate_rules::is_attribute_name;
use tollgate_simulate::advise::{
    Advice, AdviceCheck, AdviceError, Answers, Bursts, CostKind, Failure, What, advise,
};
use tracing::Dispatch;
use utoipa::ToSchema;
use utoipa::openapi::path::OperationBuilder;

use super::{Admin, Answer};
use crate::describe::{Describe, taking};
use crate::http::body::parse;
use crate::http::bounds::MAX_BODY;
use crate::http::read_body;
use crate::respond::{self, RequestError};

const MONTH: Span = Span::from_secs(30 * 86_400);
/// The largest limit and the most subjects.
const MOST_UNITS: u64 = 1_000_000_000;
const MOST_SUBJECTS: u64 = 1_000_000_000_000;

/// The answers to the ten questions, and the numbers of the rule. An answer that is missing has its default.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schema(as = Questions)]
pub(super) struct QuestionsBody {
    /// What to limit: `rate`, `quota` or `concurrency`.
    #[schema(value_type = String)]
    what: What,
    /// Whether no window may ever exceed the limit.
    exact: bool,
    /// What about bursts: `allow`, `smooth` or `wait`.
    #[schema(value_type = String)]
    bursts: Bursts,
    /// What requests cost: `same`, `varies` or `later`.
    #[schema(value_type = String)]
    cost: CostKind,
    /// How many subjects there are in a window.
    subjects: u64,
    /// Whether memory is scarce.
    small_memory: bool,
    /// While the store is down: `open`, `closed` or `local`.
    #[schema(value_type = String)]
    failure: Failure,
    /// Whether the usage is billed.
    billing: bool,
    /// Whether several instances share the limit.
    fleet: bool,
    /// Whether several rules of a request must be decided together.
    together: bool,
    /// The attribute of the subject.
    per: String,
    limit: u64,
    /// The time that the limit is for, such as `1m`: by default `1m`, or a month for a quota.
    window: Option<String>,
}

impl Default for QuestionsBody {
    fn default() -> QuestionsBody {
        QuestionsBody {
            what: What::Rate,
            exact: false,
            bursts: Bursts::Allow,
            cost: CostKind::Same,
            subjects: 10_000,
            small_memory: false,
            failure: Failure::Local,
            billing: false,
            fleet: false,
            together: false,
            per: "user".to_owned(),
            limit: 100,
            window: None,
        }
    }
}

impl QuestionsBody {
    fn answers(self) -> Result<Answers, String> {
        let usual = match self.what {
            What::Quota => MONTH,
            What::Rate | What::Concurrency => Span::MINUTE,
        };
        let window = match &self.window {
            Some(window) => duration(window).map_err(|bad| format!("`window`: {bad}"))?,
            None => usual,
        };
        if window == Span::ZERO {
            return Err("`window` is 0".to_owned());
        }
        if !is_attribute_name(&self.per) {
            return Err("`per` must be the name of an attribute, such as user".to_owned());
        }
        if !(1..=MOST_UNITS).contains(&self.limit) {
            return Err(format!("`limit` must be 1 to {MOST_UNITS}"));
        }
        if !(1..=MOST_SUBJECTS).contains(&self.subjects) {
            return Err(format!("`subjects` must be 1 to {MOST_SUBJECTS}"));
        }
        Ok(Answers {
            what: self.what,
            exact: self.exact,
            bursts: self.bursts,
            cost: self.cost,
            subjects: self.subjects,
            small_memory: self.small_memory,
            failure: self.failure,
            billing: self.billing,
            fleet: self.fleet,
            together: self.together,
            per: self.per,
            limit: self.limit,
            window,
        })
    }
}

/// A rule with its reasons.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Advice)]
pub(super) struct AdviceBody {
    algorithm: &'static str,
    /// A config with the rule.
    config: String,
    reasons: Vec<String>,
    promise: &'static str,
    /// The bytes of Redis for one subject, and for all subjects.
    bytes_per_subject: u64,
    bytes: u64,
    /// The bytes of an instance for all subjects, with state in memory.
    memory_bytes: u64,
    /// The CPU of Redis for a check, in microseconds.
    redis_micros: f64,
    /// What a simulation shows; null for concurrency.
    #[schema(required = true)]
    simulation: Option<AdviceFigures>,
}

/// What a simulation of the rule shows, with nine subjects at half of the limit and one at ten times the limit.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AdviceFigures {
    quiet_requests: u64,
    quiet_denied: u64,
    loud_requests: u64,
    loud_allowed: u64,
    /// The most units that a subject was allowed in any time of `windowMillis`.
    #[schema(required = true)]
    most_in_window: Option<u64>,
    /// The time in which a spent allowance comes back.
    #[schema(required = true)]
    window_millis: Option<u64>,
    /// The limit that was simulated, against the advised one: below 1 for large limits.
    scale: f64,
}

impl AdviceBody {
    fn of(advice: Advice) -> AdviceBody {
        AdviceBody {
            algorithm: advice.algorithm,
            config: advice.config,
            reasons: advice.reasons,
            promise: advice.promise,
            bytes_per_subject: advice.bytes_per_subject,
            bytes: advice.bytes,
            memory_bytes: advice.memory_bytes,
            redis_micros: advice.redis_micros,
            simulation: advice.simulation.map(AdviceFigures::of),
        }
    }
}

impl AdviceFigures {
    fn of(check: AdviceCheck) -> AdviceFigures {
        AdviceFigures {
            quiet_requests: check.quiet_requests,
            quiet_denied: check.quiet_denied,
            loud_requests: check.loud_requests,
            loud_allowed: check.loud_allowed,
            most_in_window: check.most_in_window,
            window_millis: check.window_millis,
            scale: check.scale,
        }
    }
}

pub(super) async fn ask(State(admin): State<Arc<Admin>>, request: Request) -> Answer {
    let body = read_body(request, MAX_BODY).await?;
    let questions: QuestionsBody = parse(&body)?;
    let answers = questions.answers().map_err(RequestError::Query)?;
    // The semaphore is never closed. The simulation keeps its place even if the client goes away.
    let permit = Arc::clone(&admin.advising).acquire_owned().await;
    let advising = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        quietly(&answers)
    });
    let advice = advising.await.map_err(|_| RequestError::Internal)?;
    let advice = advice.map_err(|error| RequestError::Query(error.to_string()))?;
    Ok(respond::report(&AdviceBody::of(advice)))
}

/// Proposes a rule. The denials of the simulation are not those of a client, so they are not logged.
fn quietly(answers: &Answers) -> Result<Advice, AdviceError> {
    tracing::dispatcher::with_default(&Dispatch::none(), || advise(answers))
}

pub(super) fn describe() -> OperationBuilder {
    let example = serde_json::json!({ "what": "rate", "exact": true, "fleet": true, "limit": 50, "window": "1m" });
    taking::<QuestionsBody>("advise", example)
        .summary(Some(
            "Proposes a rule: ten answers lead to it. Changes nothing.",
        ))
        .ok::<AdviceBody>("The rule, with its reasons, its cost and its promise.")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context, SubscriberExt};

    use super::*;

    /// Counts the lines of a log.
    struct Lines(Arc<AtomicU64>);

    impl<S: tracing::Subscriber> Layer<S> for Lines {
        fn on_event(&self, _: &tracing::Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn denials_of_the_simulation_are_not_logged() {
        let count = Arc::new(AtomicU64::new(0));
        let subscriber = tracing_subscriber::registry().with(Lines(Arc::clone(&count)));
        let answers = QuestionsBody::default().answers().unwrap();
        tracing::subscriber::with_default(subscriber, || {
            quietly(&answers).unwrap();
            assert_eq!(count.load(Ordering::Relaxed), 0);
            // The log is on: only the simulation is silent. Other tests simulate at the same time without a log, so
            // whether a second simulation would write lines here depends on them.
            tracing::info!("a line");
            assert_eq!(count.load(Ordering::Relaxed), 1);
        });
    }

    fn advised(body: serde_json::Value) -> Result<Advice, String> {
        let questions: QuestionsBody =
            serde_json::from_value(body).map_err(|error| error.to_string())?;
        advise(&questions.answers()?).map_err(|error| error.to_string())
    }

    #[test]
    fn answers_lead_to_the_rule_of_the_engine() {
        let json = serde_json::json!({});
        assert_eq!(advised(json).unwrap().algorithm, "gcra");
        let json = serde_json::json!({ "exact": true, "limit": 50, "per": "ip" });
        let advice = advised(json).unwrap();
        assert_eq!(advice.algorithm, "sliding-log");
        assert!(advice.config.contains("per: [ip]"), "{}", advice.config);
        let json = serde_json::json!({ "what": "quota", "limit": 1000 });
        let advice = advised(json).unwrap();
        assert!(
            advice.config.contains("limit: 1000\n    period: month"),
            "{}",
            advice.config
        );
    }

    #[test]
    fn wrong_answers_are_named() {
        for (body, expected) in [
            (serde_json::json!({ "what": "speed" }), "speed"),
            (serde_json::json!({ "per": "a b" }), "`per` must be"),
            (serde_json::json!({ "limit": 0 }), "`limit` must be"),
            (serde_json::json!({ "subjects": 0 }), "`subjects` must be"),
            (serde_json::json!({ "window": "0s" }), "`window`"),
            (serde_json::json!({ "window": "soon" }), "`window`"),
            (
                serde_json::json!({ "what": "quota", "window": "400d" }),
                "at most 366d",
            ),
            (serde_json::json!({ "color": "red" }), "color"),
        ] {
            let error = advised(body.clone()).unwrap_err();
            assert!(error.contains(expected), "{body}: {error}");
        }
    }
}
