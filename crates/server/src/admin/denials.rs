//! Recorded denials at the admin door.

use std::sync::Arc;

use axum::extract::{RawQuery, Request, State};
use serde::Deserialize;
use tollgate::Attributes;
use tollgate_rules::is_attribute_name;
use utoipa::ToSchema;
use utoipa::openapi::path::OperationBuilder;

use super::{Admin, Answer};
use crate::describe::{Describe, looking, number_schema, taking, text_schema};
use crate::http::body::{attribute_map, parse};
use crate::http::bounds::{MAX_ATTRIBUTES, MAX_BODY, MAX_VALUE};
use crate::http::read_body;
use crate::journal::{FoundDenials, Query};
use crate::question::AttributeMap;
use crate::respond::{self, RequestError};

/// The subject of a query, in a body: URLs are logged by proxies, and the value of an attribute may be a secret.
#[derive(Deserialize, ToSchema)]
#[schema(as = DenialsOf)]
#[serde(deny_unknown_fields)]
pub(super) struct SubjectBody<'a> {
    /// The attributes of the subject.
    #[serde(borrow)]
    #[schema(schema_with = attribute_map)]
    attributes: AttributeMap<'a>,
}

pub(super) async fn list(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Answer {
    find(&admin, query.as_deref(), Vec::new()).await
}

/// Like [`list`], with the attributes of the subject in the body.
pub(super) async fn search(State(admin): State<Arc<Admin>>, request: Request) -> Answer {
    let query = request.uri().query().map(str::to_owned);
    let body = read_body(request, MAX_BODY).await?;
    let body: SubjectBody<'_> = parse(&body)?;
    let attributes = body.attributes.attributes();
    let pairs = attributes.iter();
    let subject = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    find(&admin, query.as_deref(), subject.collect()).await
}

async fn find(admin: &Admin, query: Option<&str>, mut subject: Vec<(String, String)>) -> Answer {
    let journal = admin.control.journal().ok_or(RequestError::NoJournal)?;
    let now = admin.control.now();
    let mut wanted = Query::default();
    for (name, text) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        if name == "subject" {
            subject.push(attribute(&text)?);
            continue;
        }
        let set = wanted.set(&name, &text, now);
        set.map_err(|error| RequestError::Query(error.to_string()))?;
    }
    let checked = wanted.check();
    checked.map_err(|error| RequestError::Query(error.to_string()))?;
    add_subjects(admin, &subject, &mut wanted)?;
    if wanted.after.is_some() {
        let is_draining = || admin.is_draining();
        let found = journal.follow(&wanted, is_draining).await;
        return Ok(respond::report(&found));
    }
    let found = journal.find(wanted).await;
    Ok(respond::report(&found.map_err(RequestError::Journal)?))
}

/// Reads `NAME=VALUE`. Errors do not quote the value, which may be a secret.
fn attribute(text: &str) -> Result<(String, String), RequestError> {
    let wrong = |what: &str| RequestError::Query(what.to_owned());
    let Some((name, value)) = text.split_once('=') else {
        return Err(wrong("subject must be NAME=VALUE, such as api_key=k1"));
    };
    if !is_attribute_name(name) || value.is_empty() || value.len() > MAX_VALUE {
        let must = format!(
            "subject must be NAME=VALUE with the name of an attribute and a value of 1 to {MAX_VALUE} bytes"
        );
        return Err(RequestError::Query(must));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Adds the hashed subjects that these attributes make under the rules in force.
fn add_subjects(
    admin: &Admin,
    subject: &[(String, String)],
    wanted: &mut Query,
) -> Result<(), RequestError> {
    if subject.is_empty() {
        return Ok(());
    }
    if subject.len() > MAX_ATTRIBUTES {
        let most = format!("at most {MAX_ATTRIBUTES} subject parameters are allowed");
        return Err(RequestError::Query(most));
    }
    let pairs = subject
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let attributes: Attributes<'_> = pairs.collect();
    let active = admin.control.engine().active();
    // An attribute that no rule has in `per` may be that of a block.
    let has_subjects = |(name, _): &(String, String)| {
        let mut rules = active.rules().rules().iter();
        name == "key" || rules.any(|rule| rule.per().contains(name))
    };
    if !active.has_blocks() && !subject.iter().any(has_subjects) {
        let rules = active.rules().rules().iter();
        let mut types: Vec<&str> = rules.map(tollgate::Rule::subject_type).collect();
        types.sort_unstable();
        types.dedup();
        types.retain(|it| *it != "global");
        let names: Vec<&str> = subject.iter().map(|(name, _)| name.as_str()).collect();
        return Err(RequestError::Query(format!(
            "no rule has {} in `per`; the rules have subjects of {}",
            names.join("+"),
            match types.as_slice() {
                [] => "no kind".to_owned(),
                types => types.join(", "),
            }
        )));
    }
    for subject in active.subjects_of(&attributes) {
        wanted.add_subject(subject);
    }
    Ok(())
}

pub(super) fn describe_search() -> OperationBuilder {
    let example = serde_json::json!({ "attributes": { "api_key": "k1" } });
    let summary = "Denials of a subject, the newest first. As GET, with the subject in the body: no URL shows it.";
    parameters(taking::<SubjectBody<'_>>("denialsOf", example)).summary(Some(summary))
}

pub(super) fn describe() -> OperationBuilder {
    let subject = "An attribute of the subject, as NAME=VALUE; repeat it for a subject of several attributes. The server hashes the values, and neither stores nor logs them. Proxies may log the URL: POST takes the attributes in a body.";
    parameters(looking("denials"))
        .summary(Some("Denials of this instance, the newest first."))
        .query("subject", subject, text_schema())
}

/// Adds the parameters that GET and POST have in common, and the answers.
fn parameters(operation: OperationBuilder) -> OperationBuilder {
    let limit = number_schema(1).maximum(Some(1000));
    let limit = limit.default(Some(100.into()));
    let hash = "The hash of a subject, or its first 8 digits or more.";
    let time = "a time (RFC 3339), or an age such as `1h`.";
    let after = "Follow the journal: only denials after the `next` of an earlier answer, the oldest first, from memory.";
    let wait = "With `after`: for how many seconds to wait for a denial.";
    let unreadable = "A file of the journal cannot be read.";
    operation
        .query("hash", hash, text_schema())
        .query("rule", "Only denials of this rule.", text_schema())
        .query("door", "Only denials at this door.", text_schema())
        .query("action", "Only denials of this action.", text_schema())
        .query(
            "since",
            &format!("Only denials since {time}"),
            text_schema(),
        )
        .query(
            "until",
            &format!("Only denials until {time}"),
            text_schema(),
        )
        .query("limit", "The most denials.", limit)
        .query("after", after, number_schema(0))
        .query("wait", wait, number_schema(0).maximum(Some(30)))
        .ok::<FoundDenials>("Denials.")
        .fails("400", "BAD_REQUEST", "A parameter is wrong.")
        .fails("409", "NO_JOURNAL", "The server has no journal of denials.")
        .fails("503", "JOURNAL_UNAVAILABLE", unreadable)
}
