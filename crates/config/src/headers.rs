//! The headers and bodies of responses: plain data, validated.

use std::sync::Arc;

use tollgate_rules::document::{Flag, List, Problems, section, words};
use tollgate_rules::{DenialBody, RawDenialBody};

/// The headers and bodies of responses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Headers {
    /// Which families of rate limit headers to send (default `ratelimit`).
    pub families: Families,
    /// The form of the answer to a check, unless the request asks for another form (default full).
    pub answers: AnswerForm,
    /// Whether denials have a problem+json body.
    pub problem_json: bool,
    /// The form of `RateLimit-Reset` (default seconds).
    pub ratelimit_reset: ResetForm,
    /// The form of `X-RateLimit-Reset` (default epoch).
    pub x_ratelimit_reset: ResetForm,
    /// The body of denials, unless the denying rule has its own.
    pub denial_body: Option<Arc<DenialBody>>,
}

words! {
    /// How a header says when the limit is back.
    pub enum ResetForm is "`seconds` or `epoch`" {
        /// Seconds from now.
        Seconds = "seconds",
        /// Seconds since the epoch.
        Epoch = "epoch",
    }
}

words! {
    /// The form of the answer to a check.
    pub enum AnswerForm is "`full` or `minimal`" {
        /// The deciding rule, every other rule, and rate limit headers.
        Full = "full",
        /// The figures of the deciding rule, in a short body, without rate limit headers.
        Minimal = "minimal",
    }
}

/// Families of rate limit headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    /// `RateLimit` and `RateLimit-Policy`, structured fields.
    pub ietf: bool,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`.
    pub ratelimit: bool,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset`.
    pub x_ratelimit: bool,
}

section! {
    /// The headers and bodies of responses.
    pub(crate) struct RawHeaders is "`headers`" {
        /// Which families of rate limit headers to send (default ratelimit).
        families: List<RawFamily> = "families",
        /// Whether answers to checks over HTTP have all fields, or only the figures of the deciding rule (default full). A request may ask for the other form.
        answers: AnswerForm = "answers",
        /// Whether denials have a problem+json body.
        problem_json: Flag = "problem_json",
        /// Whether RateLimit-Reset is in seconds from now, or in seconds since the epoch (default seconds).
        ratelimit_reset: ResetForm = "ratelimit_reset",
        /// Whether X-RateLimit-Reset is in seconds from now, or in seconds since the epoch (default epoch).
        x_ratelimit_reset: ResetForm = "x_ratelimit_reset",
        /// The body of denials, as a template: a text with fields such as {{retry_after}}, or a map with a content type. A rule may have its own.
        denial_body: RawDenialBody = "denial_body",
    }
}

words! {
    /// A family of headers.
    pub(crate) enum RawFamily is "a family of headers" {
        /// `RateLimit` and `RateLimit-Policy`.
        Ietf = "ietf",
        /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`.
        RateLimit = "ratelimit",
        /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset`.
        XRateLimit = "x-ratelimit",
    }
}

pub(crate) fn headers(raw: Option<&RawHeaders>, problems: &mut Problems<'_>) -> Headers {
    let given = raw.and_then(|raw| raw.families.value());
    let problem_json = raw.and_then(|raw| raw.problem_json.value());
    let reset = |field: Option<&ResetForm>, default| field.copied().unwrap_or(default);
    let denial_body = raw.and_then(|raw| raw.denial_body.value());
    let mut families = Families {
        ietf: false,
        ratelimit: given.is_none(),
        x_ratelimit: false,
    };
    for at in given.map_or(&[][..], |given| &given.0) {
        let family = match at.value {
            RawFamily::Ietf => &mut families.ietf,
            RawFamily::RateLimit => &mut families.ratelimit,
            RawFamily::XRateLimit => &mut families.x_ratelimit,
        };
        if std::mem::replace(family, true) {
            let message = format!("`{}` is listed twice", at.value.name());
            problems.report(at.place, message, "list each family once");
        }
    }
    let answers = raw.and_then(|raw| raw.answers.value());
    Headers {
        families,
        answers: answers.copied().unwrap_or(AnswerForm::Full),
        problem_json: problem_json.is_some_and(|flag| flag.0),
        ratelimit_reset: reset(
            raw.and_then(|raw| raw.ratelimit_reset.value()),
            ResetForm::Seconds,
        ),
        x_ratelimit_reset: reset(
            raw.and_then(|raw| raw.x_ratelimit_reset.value()),
            ResetForm::Epoch,
        ),
        denial_body: denial_body.map(|raw| Arc::new(raw.body())),
    }
}
