//! Runs the tests of a file, each on a limiter of its own.

use std::collections::HashMap;

use tollgate::{
    Acquire, AcquireOutcome, Ask, Attributes, Config, Decision, HoldError, HoldName, LeaseToken,
    Reason, Reserve, ReserveOutcome, Rule, Time,
};
use tollgate_config::{ConfigError, Routes, normal_path};
use tollgate_rules::document::{At, Duration, Place, Problems};

use super::file::{Expected, Request, Step, Test, TestFile, Verb};
use super::{Failure, FileOutcome, TestOutcome};
use crate::VirtualLimiter;

/// What a step led to.
enum Answer {
    Decided(Box<Decision>),
    /// The step was done, and has no decision to check.
    Done,
    Failed(String),
}

/// A reservation or a lease that a step has made.
enum Made {
    Reservation(HoldName),
    Lease(HoldName, LeaseToken),
}

/// An expectation that was not met.
struct Unmet {
    place: Place,
    message: String,
    detail: String,
}

impl TestFile {
    /// Runs the tests whose name `wanted` accepts against the rules of `config`.
    ///
    /// # Errors
    /// If a step names a rule that the config does not have.
    pub fn run(
        &self,
        config: &Config,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<FileOutcome, ConfigError> {
        let known: Vec<&str> = config.policy.rules.iter().map(Rule::id).collect();
        self.check_rules(&known)?;
        let mut problems = Problems::new(&self.text);
        let mut tests = Vec::new();
        for test in self.tests.iter().filter(|test| wanted(&test.name.value)) {
            let (requests, unmet) = run(test, config);
            let failures = unmet.into_iter().map(|it| {
                let (line, column) = problems.position(it.place);
                problems.report(it.place, it.message.as_str(), it.detail.as_str());
                Failure {
                    line,
                    column,
                    message: it.message,
                    detail: it.detail,
                }
            });
            let failures = failures.collect();
            tests.push(TestOutcome {
                name: test.name.value.clone(),
                line: problems.line_of(test.name.place),
                requests,
                failures,
            });
        }
        let failures = (!problems.is_empty()).then(|| problems.into_error(&self.name));
        Ok(FileOutcome {
            file: self.name.clone(),
            tests,
            failures,
        })
    }
}

/// Runs a test. Returns the number of its requests, and what was not as expected.
fn run(test: &Test, config: &Config) -> (u64, Vec<Unmet>) {
    let limiter = VirtualLimiter::new(config, test.start);
    let mut running = Running {
        limiter,
        routes: &config.routes,
        made: HashMap::new(),
    };
    let (mut requests, mut unmet) = (0, Vec::new());
    for step in &test.steps {
        requests += step.times;
        running.step(step, test.start, &mut unmet);
    }
    (requests, unmet)
}

struct Running<'t> {
    limiter: VirtualLimiter,
    routes: &'t Routes,
    made: HashMap<&'t str, Made>,
}

impl<'t> Running<'t> {
    fn step(&mut self, step: &'t Step, start: Time, unmet: &mut Vec<Unmet>) {
        let path = step.request.as_ref().map(normal);
        let attributes = attributes(step, path.as_deref(), self.routes);
        let mut at = start + step.at;
        let mut allowed = 0;
        for repetition in 1..=step.times {
            self.limiter.set_time(at);
            let answer = self.act(step, &attributes);
            let is_allowed = match &answer {
                Answer::Decided(decision) => decision.is_allowed(),
                Answer::Done => true,
                Answer::Failed(_) => false,
            };
            allowed += u64::from(is_allowed);
            if let Some(wrong) = unexpected(step, repetition, &answer) {
                unmet.push(wrong);
                return;
            }
            if repetition == step.times {
                check_last(step, &answer, unmet);
                if let Some(expected) = step.expected.allowed.get()
                    && expected.value.0 != allowed
                {
                    let (expected, place) = (expected.value.0, expected.place);
                    let of = step.times;
                    unmet.push(Unmet {
                        place,
                        message: format!(
                            "expected {expected} of {of} requests to be allowed, but {allowed} are"
                        ),
                        detail: format!("after the last one: {}", detail(&answer)),
                    });
                }
            }
            at = at + step.every;
        }
    }

    fn act(&mut self, step: &'t Step, attributes: &Attributes<'_>) -> Answer {
        let ask = match step.up_to {
            true => Ask::UpTo(step.cost),
            false => Ask::Exactly(step.cost),
        };
        let limiter = &self.limiter;
        let decided = |decision| Answer::Decided(Box::new(decision));
        match step.act {
            Verb::Check => decided(limiter.ask_now(attributes, ask)),
            Verb::Peek => decided(limiter.peek_now(attributes, ask)),
            Verb::Refund => match limiter.refund_now(attributes, step.cost, Time::MAX) {
                Ok(_) => Answer::Done,
                Err(error) => Answer::Failed(error.to_string()),
            },
            Verb::Reset => match limiter.reset_now(attributes) {
                Ok(()) => Answer::Done,
                Err(error) => Answer::Failed(error.to_string()),
            },
            Verb::Reserve => self.reserve(step, attributes).unwrap_or_else(failed),
            Verb::Acquire => self.acquire(step, attributes).unwrap_or_else(failed),
            Verb::Commit | Verb::Renew | Verb::Release => match self.end(step) {
                Ok(()) => Answer::Done,
                Err(message) => Answer::Failed(message),
            },
        }
    }

    fn reserve(
        &mut self,
        step: &'t Step,
        attributes: &Attributes<'_>,
    ) -> Result<Answer, HoldError> {
        let reserve = Reserve {
            units: step.cost,
            ttl: step.ttl,
            ..Reserve::default()
        };
        Ok(match self.limiter.reserve_now(attributes, &reserve)? {
            ReserveOutcome::Held { hold, decision } => {
                if let Some(name) = &step.named {
                    self.made.insert(name, Made::Reservation(hold.id));
                }
                decision.map_or(Answer::Done, |it| Answer::Decided(Box::new(it)))
            }
            ReserveOutcome::Denied(decision) => Answer::Decided(Box::new(decision)),
        })
    }

    fn acquire(
        &mut self,
        step: &'t Step,
        attributes: &Attributes<'_>,
    ) -> Result<Answer, HoldError> {
        let acquire = Acquire {
            ttl: step.ttl,
            owner: step.named.as_deref().unwrap_or_default(),
            ..Acquire::default()
        };
        let limiter = &self.limiter;
        Ok(match limiter.try_acquire_now(attributes, &acquire, None)? {
            AcquireOutcome::Granted {
                lease,
                token,
                decision,
            } => {
                if let Some(name) = &step.named {
                    self.made.insert(name, Made::Lease(lease.id, token));
                }
                Answer::Decided(Box::new(decision))
            }
            AcquireOutcome::Denied(decision) => Answer::Decided(Box::new(decision)),
        })
    }

    /// Commits, renews or releases.
    fn end(&self, step: &Step) -> Result<(), String> {
        let name = step.of.as_ref().map_or("", |of| of.value.as_str());
        let Some(made) = self.made.get(name) else {
            return Err(format!("`{name}` was not granted"));
        };
        let limiter = &self.limiter;
        let done = match (step.act, made) {
            (Verb::Commit, Made::Reservation(id)) => limiter.commit_now(id, step.cost),
            (Verb::Renew, Made::Lease(id, token)) => limiter.renew_now(id, *token, step.ttl),
            (Verb::Release, Made::Reservation(id)) => limiter.release_now(id),
            (Verb::Release, Made::Lease(id, token)) => limiter.free_now(id, *token),
            (_, Made::Lease(..)) => return Err(format!("`{name}` is a lease")),
            (_, Made::Reservation(_)) => return Err(format!("`{name}` is a reservation")),
        };
        done.map(|_| ()).map_err(|error| error.to_string())
    }
}

#[allow(clippy::needless_pass_by_value, reason = "as the callers need it")]
fn failed(error: HoldError) -> Answer {
    Answer::Failed(error.to_string())
}

/// Returns the path of a request in its normal form, as the doors do.
fn normal(request: &Request) -> String {
    let written = request.path.as_str();
    normal_path(written.as_bytes()).unwrap_or_else(|| written.to_owned())
}

/// Returns the attributes of a step: those of its request, as forward-auth makes them, then its own.
fn attributes<'s>(step: &'s Step, path: Option<&'s str>, routes: &'s Routes) -> Attributes<'s> {
    let mut attributes = Attributes::new();
    if let (Some(request), Some(path)) = (&step.request, path) {
        let host = request.host.as_deref();
        let action = routes.action(&request.method, host, request.path.as_bytes());
        let described = [
            ("method", Some(request.method.as_str())),
            ("path", Some(path)),
            ("host", host),
            ("scheme", request.scheme),
            ("action", action),
        ];
        let described = described.into_iter();
        attributes.extend(described.filter_map(|(name, value)| Some((name, value?))));
    }
    let own = step.attributes.iter();
    attributes.extend(own.map(|(name, value)| (name.as_str(), value.as_str())));
    attributes
}

/// Compares the answer to one repetition with `expect`.
fn unexpected(step: &Step, repetition: u64, answer: &Answer) -> Option<Unmet> {
    let expected = step.expected.expect.get();
    let is = match answer {
        Answer::Decided(decision) if !decision.is_allowed() => Expected::Denied,
        Answer::Decided(_) | Answer::Done => Expected::Allowed,
        Answer::Failed(_) => Expected::Failed,
    };
    // An error is never what a test wants silently.
    let place = match expected {
        Some(at) if at.value == is => return None,
        Some(at) => at.place,
        None if is != Expected::Failed => return None,
        None => Place::new(step.place.start, step.place.start),
    };
    let what = match step.times {
        1 => "this request".to_owned(),
        times => format!("request {repetition} of {times}"),
    };
    let message = match (expected, is) {
        (None, _) => format!("{what} failed"),
        (Some(at), Expected::Failed) => format!("expected {}, but {what} failed", at.value.name()),
        (Some(at), is) => format!("expected {}, but {what} is {}", at.value.name(), is.name()),
    };
    Some(Unmet {
        place,
        message,
        detail: detail(answer),
    })
}

/// Compares the last answer of a step with the other expectations.
fn check_last(step: &Step, answer: &Answer, unmet: &mut Vec<Unmet>) {
    let expected = &step.expected;
    let decision = match answer {
        Answer::Decided(decision) => Some(&**decision),
        Answer::Done | Answer::Failed(_) => None,
    };
    let rule = decision.and_then(Decision::rule);
    let mut check = |place: Place, name: &str, expected: String, is: Option<String>| {
        if is.as_ref() != Some(&expected) {
            let is = is.unwrap_or_else(|| "none".to_owned());
            unmet.push(Unmet {
                place,
                message: format!("expected {name} {expected}, but it is {is}"),
                detail: detail(answer),
            });
        }
    };
    let text = |at: &At<Duration>| at.value.0.to_string();
    if let Some(at) = expected.rule.get() {
        let is = rule.map(|rule| rule.rule().id().to_owned());
        check(at.place, "rule", at.value.0.clone(), is);
    }
    if let Some(at) = expected.reason.get() {
        let is = decision.and_then(Decision::reason);
        let is = is.map(|reason: Reason| reason.name().to_owned());
        check(at.place, "reason", at.value.0.clone(), is);
    }
    if let Some(at) = expected.retry_after.get() {
        let is = decision.and_then(Decision::retry_after);
        check(
            at.place,
            "retry_after",
            text(at),
            is.map(|it| it.to_string()),
        );
    }
    if let Some(at) = expected.delay.get() {
        let is = decision.map(|it| it.delay().to_string());
        check(at.place, "delay", text(at), is);
    }
    for (name, field, is) in [
        (
            "remaining",
            &expected.remaining,
            rule.and_then(|it| it.remaining()),
        ),
        ("limit", &expected.limit, rule.and_then(|it| it.limit())),
        (
            "granted",
            &expected.granted,
            decision.map(Decision::granted),
        ),
    ] {
        if let Some(at) = field.get() {
            check(
                at.place,
                name,
                at.value.0.to_string(),
                is.map(|it| it.to_string()),
            );
        }
    }
    if let Some(at) = expected.shadow_denied.get() {
        let mut wanted: Vec<&str> = at.value.0.iter().map(|it| it.value.0.as_str()).collect();
        wanted.sort_unstable();
        let is = decision.map(|decision| {
            let shadows = decision
                .rules()
                .filter(|it| it.is_shadow() && !it.is_allowed());
            let mut shadows: Vec<&str> = shadows.map(|it| it.rule().id()).collect();
            shadows.sort_unstable();
            format!("[{}]", shadows.join(", "))
        });
        check(
            at.place,
            "shadow_denied",
            format!("[{}]", wanted.join(", ")),
            is,
        );
    }
}

/// Writes what each rule decided.
fn detail(answer: &Answer) -> String {
    let decision = match answer {
        Answer::Decided(decision) => decision,
        Answer::Done => return "the step has no decision".to_owned(),
        Answer::Failed(message) => return message.clone(),
    };
    let rules = decision.rules().map(|rule| {
        let (id, algorithm) = (rule.rule().id(), rule.rule().algorithm().name());
        format!("{id} ({algorithm}) {rule}")
    });
    let rules: Vec<String> = rules.collect();
    match rules.is_empty() {
        true => "no rule applies to this request".to_owned(),
        false => rules.join("; "),
    }
}
