//! Reservations, leases and usage: what is asked for, and who answers.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, Request, State};
use axum::response::Response;
use axum::routing::{delete, get, post};
use http::HeaderName;
use serde::Deserialize;
use tollgate::HoldName;

use super::hold_body::{
    self, AcquireBody, CommitBody, EndBody, ExtendBody, FreeBody, HoldersBody, RenewBody,
    ReserveBody,
};
use super::{App, DOOR, body, bounds, read_body};
use crate::respond::{self, RequestError, accepts_problem, hold};
use crate::trace::Origin;
use crate::usage::UsageOf;

/// Where the token of a lease may stand instead of a body, which some clients cannot send with `DELETE`.
const LEASE_TOKEN: HeaderName = HeaderName::from_static("lease-token");

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/reservations", post(reserve))
        .route("/v1/reservations/{id}", get(reservation))
        .route("/v1/reservations/{id}/commit", post(commit))
        .route("/v1/reservations/{id}/release", post(release))
        .route("/v1/reservations/{id}/extend", post(extend))
        .route("/v1/leases", post(acquire))
        .route("/v1/leases/holders", post(holders))
        .route("/v1/leases/{id}", delete(free))
        .route("/v1/leases/{id}/renew", post(renew))
        .route("/v1/usage/{tenant}", get(usage))
}

async fn reserve(State(app): State<Arc<App>>, request: Request) -> Response {
    let accepts_problem = accepts_problem(request.headers());
    let origin = Origin::new(DOOR, request.headers());
    respond::answer(async {
        let body = read(&app, request).await?;
        let reserve: ReserveBody<'_> = body::parse(&body)?;
        let (attributes, wish) = (reserve.attributes(), reserve.effect()?);
        let (pinned, face) = app.turn();
        let asking = pinned.reserve(&attributes, &wish);
        let told = origin.trace(&pinned, "reserve", asking).await;
        let told = told.map_err(RequestError::of_reservation)?;
        Ok(face.responder.reserving(&told, accepts_problem))
    })
    .await
}

async fn reservation(State(app): State<Arc<App>>, id: Named) -> Response {
    respond::answer(async {
        let name = name(id)?;
        let found = app.keeper.engine().find_hold(&name).await;
        let found = found.map_err(RequestError::of_reservation)?;
        Ok(hold::reservation(&found))
    })
    .await
}

async fn commit(State(app): State<Arc<App>>, id: Named, request: Request) -> Response {
    let origin = Origin::new(DOOR, request.headers());
    respond::answer(async {
        let name = name(id)?;
        let body = read(&app, request).await?;
        let commit: CommitBody = body::parse_like(&body, r#"{"actual":120}"#)?;
        let actual = commit.actual()?;
        let engine = &**app.keeper.engine();
        let asking = engine.commit(&name, actual);
        let ended = origin.trace(engine, "commit", asking).await;
        let ended = ended.map_err(RequestError::of_reservation)?;
        Ok(hold::reservation(&ended))
    })
    .await
}

async fn release(State(app): State<Arc<App>>, id: Named, request: Request) -> Response {
    let origin = Origin::new(DOOR, request.headers());
    respond::answer(async {
        let name = name(id)?;
        let body = read(&app, request).await?;
        // There is nothing to say.
        let _: EndBody = parse_if_any(&body, "{}")?;
        let engine = &**app.keeper.engine();
        let asking = engine.release(&name);
        let ended = origin.trace(engine, "release", asking).await;
        let ended = ended.map_err(RequestError::of_reservation)?;
        Ok(hold::reservation(&ended))
    })
    .await
}

async fn extend(State(app): State<Arc<App>>, id: Named, request: Request) -> Response {
    let origin = Origin::new(DOOR, request.headers());
    respond::answer(async {
        let name = name(id)?;
        let body = read(&app, request).await?;
        let extend: ExtendBody = body::parse_like(&body, r#"{"ttl":"60s"}"#)?;
        let ttl = extend.ttl()?;
        let engine = &**app.keeper.engine();
        let asking = engine.extend(&name, ttl);
        let extended = origin.trace(engine, "extend", asking).await;
        let extended = extended.map_err(RequestError::of_reservation)?;
        Ok(hold::reservation(&extended))
    })
    .await
}

async fn acquire(State(app): State<Arc<App>>, request: Request) -> Response {
    let accepts_problem = accepts_problem(request.headers());
    let origin = Origin::new(DOOR, request.headers());
    respond::answer(async {
        let body = read(&app, request).await?;
        let acquire: AcquireBody<'_> = body::parse(&body)?;
        let (attributes, wish) = (acquire.attributes(), acquire.effect());
        let (pinned, face) = app.turn();
        let asking = app.waiting.acquire(&pinned, &attributes, &wish);
        let told = origin.trace(&pinned, "acquire", asking).await;
        let told = told.map_err(RequestError::of_lease)?;
        Ok(face.responder.acquiring(&told, accepts_problem))
    })
    .await
}

async fn renew(State(app): State<Arc<App>>, id: Named, request: Request) -> Response {
    let origin = Origin::new(DOOR, request.headers());
    respond::answer(async {
        let name = name(id)?;
        let body = read(&app, request).await?;
        let renew: RenewBody = body::parse_like(&body, r#"{"token":"…","ttl":"30s"}"#)?;
        let engine = &**app.keeper.engine();
        let token = renew.token();
        let asking = engine.renew(&name, token, renew.ttl());
        let renewed = origin.trace(engine, "renew", asking).await;
        let renewed = renewed.map_err(RequestError::of_lease)?;
        Ok(hold::lease(&renewed))
    })
    .await
}

async fn free(State(app): State<Arc<App>>, id: Named, request: Request) -> Response {
    let origin = Origin::new(DOOR, request.headers());
    respond::answer(async {
        let name = name(id)?;
        let named = request.headers().get(&LEASE_TOKEN);
        let token = match named.map(|token| hold_body::token_of(token.as_bytes())) {
            Some(token) => token?,
            None => {
                let body = read(&app, request).await?;
                let free: FreeBody = body::parse_like(&body, r#"{"token":"…"}"#)?;
                free.token()
            }
        };
        let engine = &**app.keeper.engine();
        let asking = engine.free(&name, token);
        let freed = origin.trace(engine, "release_lease", asking).await;
        let freed = freed.map_err(RequestError::of_lease)?;
        Ok(hold::lease(&freed))
    })
    .await
}

async fn holders(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer(async {
        let body = read(&app, request).await?;
        let asked: HoldersBody<'_> = body::parse(&body)?;
        let attributes = asked.attributes();
        let holders = app.keeper.engine().holders(&attributes).await;
        let holders = holders.map_err(RequestError::of_lease)?;
        Ok(hold::holders(&holders))
    })
    .await
}

async fn usage(State(app): State<Arc<App>>, tenant: Named, RawQuery(query): RawQuery) -> Response {
    respond::answer(async {
        let Path(tenant) = tenant.map_err(|_| RequestError::BadPath)?;
        let query = query.unwrap_or_default();
        let wanted = Wanted::read(&query)?;
        let engine = app.keeper.engine();
        let usage = app.books.usage(engine, &wanted.of(&tenant)).await?;
        Ok(hold::usage(&tenant, &usage))
    })
    .await
}

type Named = Result<Path<String>, PathRejection>;

fn name(id: Named) -> Result<HoldName, RequestError> {
    let Path(id) = id.map_err(|_| RequestError::BadPath)?;
    hold_body::name(&id)
}

async fn read(app: &App, request: Request) -> Result<axum::body::Bytes, RequestError> {
    read_body(&app.stream_bodies, request, bounds::MAX_BODY).await
}

/// A body, or what stands for none.
fn parse_if_any<'a, T>(body: &'a [u8], like: &'static str) -> Result<T, RequestError>
where
    T: Deserialize<'a> + Default,
{
    match body.trim_ascii().is_empty() {
        true => Ok(T::default()),
        false => body::parse_like(body, like),
    }
}

/// What a query wants to know of a tenant.
#[derive(Debug, Default)]
struct Wanted {
    period: Option<String>,
    action: Option<String>,
    rule: Option<String>,
}

impl Wanted {
    fn read(query: &str) -> Result<Wanted, RequestError> {
        let mut wanted = Wanted::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let given = match &*name {
                "period" => &mut wanted.period,
                "action" => &mut wanted.action,
                "rule" => &mut wanted.rule,
                _ => {
                    let name: String = name.chars().take(80).collect();
                    let wrong = format!("there is no {name:?}; there are period, action and rule");
                    return Err(RequestError::Query(wrong));
                }
            };
            if given.is_some() {
                return Err(RequestError::Query(format!("{name} is given twice")));
            }
            if value.len() > bounds::MAX_VALUE {
                let wrong = format!("{name} is longer than {} bytes", bounds::MAX_VALUE);
                return Err(RequestError::Query(wrong));
            }
            // What is left empty is not said.
            *given = Some(value.into_owned()).filter(|value| !value.is_empty());
        }
        Ok(wanted)
    }

    fn of<'a>(&'a self, tenant: &'a str) -> UsageOf<'a> {
        UsageOf {
            tenant,
            period: self.period.as_deref(),
            action: self.action.as_deref(),
            rule: self.rule.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_each_thing_once() {
        let wanted = Wanted::read("period=2026-07&action=&rule=a%20b").unwrap();
        let of = wanted.of("acme");
        assert_eq!(
            (of.period, of.action, of.rule),
            (Some("2026-07"), None, Some("a b"))
        );
        let long = format!("rule={}", "x".repeat(2000));
        for (query, says) in [
            ("rules=a", "there is no \"rules\""),
            ("rule=a&rule=b", "rule is given twice"),
            (&long, "rule is longer than 1024 bytes"),
        ] {
            let wrong = Wanted::read(query).unwrap_err().to_string();
            assert!(wrong.contains(says), "{wrong}");
        }
    }
}
