//! `TG.RESERVE` and what ends it, `TG.ACQUIRE` and what ends it, `TG.HOLDERS`, `TG.USAGE`. All of them
//! may have to wait for somebody: a store, a ledger, or whoever holds a lease.

use tollgate::{
    Acquire, AcquireOutcome, Hold, HoldError, HoldName, Holders, LeaseToken, Reserve,
    ReserveOutcome, Span,
};

use super::catalogue::Name;
use super::check::{number, read};
use super::door::Door;
use super::error::CommandError;
use super::frame::Command;
use super::question::Pairs;
use super::reply::Reply;
use super::throttle::amount;
use crate::http::bounds::MAX_VALUE;
use crate::respond::held::{About, HeldError};
use crate::respond::reply_hold;
use crate::trace::Origin;
use crate::usage::{Usage, UsageError, UsageOf};

/// A command about a reservation, a lease or usage, with all it needs.
pub(super) enum Holding {
    Reserve {
        attributes: Pairs,
        units: u64,
        ttl: Option<Span>,
        key: Option<String>,
    },
    Commit(HoldName, u64),
    Release(HoldName),
    Extend(HoldName, Span),
    Acquire {
        attributes: Pairs,
        ttl: Option<Span>,
        owner: String,
        wait: Span,
    },
    Renew(HoldName, LeaseToken, Option<Span>),
    Free(HoldName, LeaseToken),
    Holders(Pairs),
    Usage {
        tenant: String,
        period: Option<String>,
        action: Option<String>,
        rule: Option<String>,
    },
}

/// What was answered.
pub(super) enum Told {
    ReserveOutcome(ReserveOutcome),
    Reservation(Hold),
    AcquireOutcome(AcquireOutcome),
    Lease(Hold),
    Holders(Vec<Holders>),
    Usage(String, Usage),
    NoUsage(UsageError),
    Failed(HeldError),
}

impl Holding {
    pub(super) fn read(name: Name, command: &Command<'_>) -> Result<Holding, CommandError> {
        let arg = |index| command.arg(index).unwrap_or_default();
        Ok(match name {
            Name::Commit => Holding::Commit(named(arg(1))?, amount("actual", arg(2))?),
            Name::Release => Holding::Release(named(arg(1))?),
            Name::Extend => Holding::Extend(named(arg(1))?, millis(amount("ttl", arg(2))?)),
            Name::Renew if command.len() > 4 => return Err(CommandError::Arguments("tg.renew")),
            Name::Renew => {
                let ttl = command.arg(3).map(|ttl| amount("ttl", ttl)).transpose()?;
                Holding::Renew(named(arg(1))?, token(arg(2))?, ttl.map(millis))
            }
            Name::Free => Holding::Free(named(arg(1))?, token(arg(2))?),
            Name::Acquire => Holding::acquire(command)?,
            Name::Holders => Holding::Holders(Pairs::of(&read(command, &mut [])?)),
            Name::Usage => Holding::usage(command)?,
            // Whoever comes here with another wants to reserve.
            _ => Holding::reserve(command)?,
        })
    }

    /// `TG.RESERVE attribute value ... [COST n] [TTL millis] [KEY text]`
    fn reserve(command: &Command<'_>) -> Result<Holding, CommandError> {
        let mut options = [("COST", None), ("TTL", None), ("KEY", None)];
        let attributes = Pairs::of(&read(command, &mut options)?);
        let [cost, ttl, (_, key)] = options;
        Ok(Holding::Reserve {
            attributes,
            units: number(cost)?.unwrap_or(1),
            ttl: number(ttl)?.map(millis),
            key: key.map(|key| text("KEY", key)).transpose()?,
        })
    }

    /// `TG.ACQUIRE attribute value ... [TTL millis] [OWNER text] [WAIT millis]`
    fn acquire(command: &Command<'_>) -> Result<Holding, CommandError> {
        let mut options = [("TTL", None), ("OWNER", None), ("WAIT", None)];
        let attributes = Pairs::of(&read(command, &mut options)?);
        let [ttl, (_, owner), wait] = options;
        let owner = owner.map(|owner| text("OWNER", owner)).transpose()?;
        Ok(Holding::Acquire {
            attributes,
            ttl: number(ttl)?.map(millis),
            owner: owner.unwrap_or_default(),
            wait: number(wait)?.map_or(Span::ZERO, millis),
        })
    }

    /// `TG.USAGE tenant [PERIOD period] [ACTION action] [RULE rule]`
    fn usage(command: &Command<'_>) -> Result<Holding, CommandError> {
        let mut given = [("PERIOD", None), ("ACTION", None), ("RULE", None)];
        let mut args = command.args_from(2);
        while let Some(name) = args.next() {
            let option = given
                .iter_mut()
                .find(|(option, _)| name.eq_ignore_ascii_case(option.as_bytes()));
            match (option, args.next()) {
                (Some((option, Some(_))), _) => return Err(CommandError::OptionTwice(option)),
                (Some((option, value)), Some(said)) => *value = Some(text(option, said)?),
                _ => return Err(CommandError::Syntax),
            }
        }
        let [(_, period), (_, action), (_, rule)] = given;
        Ok(Holding::Usage {
            tenant: text("the tenant", command.arg(1).unwrap_or_default())?,
            period,
            action,
            rule,
        })
    }

    /// Whether it waits for whoever holds a lease.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Holding::Acquire { wait, .. } if *wait != Span::ZERO)
    }

    pub(super) async fn ask(&self, door: &Door, origin: &Origin) -> Told {
        let engine = &*door.engine;
        match self {
            Holding::Reserve {
                attributes,
                units,
                ttl,
                key,
            } => {
                let attributes = attributes.attributes();
                let wish = Reserve {
                    units: *units,
                    ttl: *ttl,
                    idempotency_key: key.as_deref(),
                };
                let asking = engine.reserve(&attributes, &wish);
                let told = origin.trace(engine, "reserve", asking).await;
                of(About::Reservation, told.map(Told::ReserveOutcome))
            }
            Holding::Commit(name, actual) => {
                let asking = engine.commit(name, *actual);
                let told = origin.trace(engine, "commit", asking).await;
                of(About::Reservation, told.map(Told::Reservation))
            }
            Holding::Release(name) => {
                let asking = engine.release(name);
                let told = origin.trace(engine, "release", asking).await;
                of(About::Reservation, told.map(Told::Reservation))
            }
            Holding::Extend(name, ttl) => {
                let asking = engine.extend(name, *ttl);
                let told = origin.trace(engine, "extend", asking).await;
                of(About::Reservation, told.map(Told::Reservation))
            }
            Holding::Acquire {
                attributes,
                ttl,
                owner,
                wait,
            } => {
                let attributes = attributes.attributes();
                let wish = Acquire {
                    ttl: *ttl,
                    owner,
                    wait: *wait,
                };
                let pinned = engine.snapshot();
                let asking = door.waiting.acquire(&pinned, &attributes, &wish);
                let told = origin.trace(&pinned, "acquire", asking).await;
                of(About::Lease, told.map(Told::AcquireOutcome))
            }
            Holding::Renew(name, token, ttl) => {
                let asking = engine.renew(name, *token, *ttl);
                let told = origin.trace(engine, "renew", asking).await;
                of(About::Lease, told.map(Told::Lease))
            }
            Holding::Free(name, token) => {
                let asking = engine.free(name, *token);
                let told = origin.trace(engine, "release_lease", asking).await;
                of(About::Lease, told.map(Told::Lease))
            }
            Holding::Holders(attributes) => {
                let told = engine.holders(&attributes.attributes()).await;
                of(About::Lease, told.map(Told::Holders))
            }
            Holding::Usage {
                tenant,
                period,
                action,
                rule,
            } => {
                let wanted = UsageOf {
                    tenant,
                    period: period.as_deref(),
                    action: action.as_deref(),
                    rule: rule.as_deref(),
                };
                match door.books.usage(engine, &wanted).await {
                    Ok(usage) => Told::Usage(tenant.clone(), usage),
                    Err(error) => Told::NoUsage(error),
                }
            }
        }
    }
}

impl Told {
    pub(super) fn write(&self, reply: &mut Reply<'_>) {
        match self {
            Told::ReserveOutcome(told) => reply_hold::reserving(told, reply),
            Told::Reservation(hold) => reply_hold::reservation(hold, reply),
            Told::AcquireOutcome(told) => reply_hold::acquiring(told, reply),
            Told::Lease(lease) => reply_hold::lease(lease, reply),
            Told::Holders(rules) => reply_hold::holders(rules, reply),
            Told::Usage(tenant, usage) => reply_hold::usage(tenant, usage, reply),
            Told::NoUsage(error) => reply.error(error.word(), &error.to_string()),
            Told::Failed(error) => reply.error(error.word(), &error.to_string()),
        }
    }
}

fn of(about: About, told: Result<Told, HoldError>) -> Told {
    told.unwrap_or_else(|error| Told::Failed(HeldError::new(about, error)))
}

fn named(bytes: &[u8]) -> Result<HoldName, CommandError> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.parse().map_err(CommandError::HoldName)
}

fn token(bytes: &[u8]) -> Result<LeaseToken, CommandError> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.parse().map_err(|_| CommandError::Token)
}

fn text(name: &'static str, bytes: &[u8]) -> Result<String, CommandError> {
    if bytes.len() > MAX_VALUE {
        return Err(CommandError::LongOption(name));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| CommandError::OptionNotText(name))?;
    Ok(text.to_owned())
}

/// So many milliseconds, or as many as there can be: too many are refused by name later.
fn millis(millis: u64) -> Span {
    Span::from_micros(millis.saturating_mul(1000))
}
