//! Reservations, leases and usage.

use tollgate::{HoldError, HoldName};
use tonic::{Request, Response, Status};

use super::{Answer, BadMessage, Verbs, opened, pb};
use crate::respond::held::{About, HeldError};
use crate::respond::message;

pub(super) async fn reserve(
    verbs: &Verbs,
    request: Request<pb::ReserveRequest>,
) -> Answer<pb::ReserveResponse> {
    let (origin, request) = opened(request);
    let (attributes, wish) = request.read()?;
    let engine = &*verbs.engine;
    let asking = engine.reserve(&attributes, &wish);
    let told = origin.trace(engine, "reserve", asking).await;
    let told = told.map_err(of_reservation)?;
    Ok(Response::new(message::reserving(&told)))
}

pub(super) async fn commit(
    verbs: &Verbs,
    request: Request<pb::CommitRequest>,
) -> Answer<pb::Reservation> {
    let (origin, request) = opened(request);
    let (name, actual) = request.read()?;
    let engine = &*verbs.engine;
    let asking = engine.commit(&name, actual);
    let ended = origin.trace(engine, "commit", asking).await;
    let ended = ended.map_err(of_reservation)?;
    Ok(Response::new(message::reservation(&ended)))
}

pub(super) async fn release(
    verbs: &Verbs,
    request: Request<pb::ReleaseRequest>,
) -> Answer<pb::Reservation> {
    let (origin, request) = opened(request);
    let name = name(&request.id)?;
    let engine = &*verbs.engine;
    let asking = engine.release(&name);
    let ended = origin.trace(engine, "release", asking).await;
    let ended = ended.map_err(of_reservation)?;
    Ok(Response::new(message::reservation(&ended)))
}

pub(super) async fn extend(
    verbs: &Verbs,
    request: Request<pb::ExtendRequest>,
) -> Answer<pb::Reservation> {
    let (origin, request) = opened(request);
    let (name, ttl) = request.read()?;
    let engine = &*verbs.engine;
    let asking = engine.extend(&name, ttl);
    let extended = origin.trace(engine, "extend", asking).await;
    let extended = extended.map_err(of_reservation)?;
    Ok(Response::new(message::reservation(&extended)))
}

pub(super) async fn get_reservation(
    verbs: &Verbs,
    request: Request<pb::GetReservationRequest>,
) -> Answer<pb::Reservation> {
    let name = name(&request.into_inner().id)?;
    let found = verbs.engine.find_hold(&name).await;
    let found = found.map_err(of_reservation)?;
    Ok(Response::new(message::reservation(&found)))
}

pub(super) async fn acquire_lease(
    verbs: &Verbs,
    request: Request<pb::AcquireLeaseRequest>,
) -> Answer<pb::AcquireLeaseResponse> {
    let (origin, request) = opened(request);
    let (attributes, wish) = request.read()?;
    let pinned = verbs.engine.snapshot();
    let asking = verbs.waiting.acquire(&pinned, &attributes, &wish);
    let told = origin.trace(&pinned, "acquire", asking).await;
    let told = told.map_err(of_lease)?;
    Ok(Response::new(message::acquiring(&told)))
}

pub(super) async fn renew_lease(
    verbs: &Verbs,
    request: Request<pb::RenewLeaseRequest>,
) -> Answer<pb::Lease> {
    let (origin, request) = opened(request);
    let (name, token, ttl) = request.read()?;
    let engine = &*verbs.engine;
    let asking = engine.renew(&name, token, ttl);
    let renewed = origin.trace(engine, "renew", asking).await;
    let renewed = renewed.map_err(of_lease)?;
    Ok(Response::new(message::lease(&renewed)))
}

pub(super) async fn release_lease(
    verbs: &Verbs,
    request: Request<pb::ReleaseLeaseRequest>,
) -> Answer<pb::Lease> {
    let (origin, request) = opened(request);
    let (name, token) = request.read()?;
    let engine = &*verbs.engine;
    let asking = engine.free(&name, token);
    let freed = origin.trace(engine, "release_lease", asking).await;
    let freed = freed.map_err(of_lease)?;
    Ok(Response::new(message::lease(&freed)))
}

pub(super) async fn list_holders(
    verbs: &Verbs,
    request: Request<pb::ListHoldersRequest>,
) -> Answer<pb::ListHoldersResponse> {
    let request = request.into_inner();
    let attributes = request.read()?;
    let holders = verbs.engine.holders(&attributes).await;
    let holders = holders.map_err(of_lease)?;
    Ok(Response::new(message::holders(&holders)))
}

pub(super) async fn get_usage(
    verbs: &Verbs,
    request: Request<pb::GetUsageRequest>,
) -> Answer<pb::GetUsageResponse> {
    let request = request.into_inner();
    let wanted = request.read()?;
    let usage = verbs.books.usage(&verbs.engine, &wanted).await?;
    Ok(Response::new(message::usage(&usage)))
}

fn name(text: &str) -> Result<HoldName, BadMessage> {
    Ok(text.parse()?)
}

fn of_reservation(error: HoldError) -> Status {
    HeldError::new(About::Reservation, error).into()
}

fn of_lease(error: HoldError) -> Status {
    HeldError::new(About::Lease, error).into()
}
