//! The arguments of `TG.*` commands as questions.

use tollgate::{HoldName, Span};

use super::catalogue::Name;
use super::command_error::{CommandError, shown};
use super::frame::Command;
use super::throttle::amount;
use crate::http::bounds::MAX_VALUE;
use crate::question::{
    self, AttributeMap, BadQuestion, Check, Question, Refund, Text, UsageQuestion, millis,
};

/// Reads the arguments of a command that asks a question.
pub(super) fn read<'a>(name: Name, command: &Command<'a>) -> Result<Question<'a>, CommandError> {
    let arg = |index| command.arg(index).unwrap_or_default();
    Ok(match name {
        Name::Check => Question::Check(check(command)?),
        Name::Peek => Question::Peek(check(command)?),
        Name::Refund => Question::Refund(refund(command)?),
        Name::Reserve => reserve(command)?,
        Name::Commit => Question::Commit {
            id: hold_name(arg(1))?,
            actual: amount("actual", arg(2))?,
        },
        Name::Release => Question::Release(hold_name(arg(1))?),
        Name::Extend => Question::Extend {
            id: hold_name(arg(1))?,
            ttl: millis(amount("ttl", arg(2))?),
        },
        Name::Acquire => acquire(command)?,
        Name::Renew if command.len() > 4 => return Err(CommandError::Arguments("tg.renew")),
        Name::Renew => {
            let ttl = command.arg(3).map(|ttl| amount("ttl", ttl)).transpose()?;
            Question::RenewLease {
                id: hold_name(arg(1))?,
                token: question::token(arg(2))?,
                ttl: ttl.map(millis),
            }
        }
        Name::Free => Question::ReleaseLease {
            id: hold_name(arg(1))?,
            token: question::token(arg(2))?,
        },
        Name::Holders => Question::Holders(read_pairs(command, &mut [])?),
        Name::Usage => usage(command)?,
        _ => return Err(CommandError::Unknown(shown(arg(0)))),
    })
}

/// Reads `attribute value ... [COST n | UPTO n]`.
fn check<'a>(command: &Command<'a>) -> Result<Check<'a>, CommandError> {
    let mut options = [("COST", None), ("UPTO", None)];
    let attributes = read_pairs(command, &mut options)?;
    let [cost, up_to] = options;
    let (cost, up_to) = match [number(cost)?, number(up_to)?] {
        [Some(_), Some(_)] => return Err(CommandError::CostAndUpTo),
        [None, Some(units)] => (Some(units), true),
        [units, None] => (units, false),
    };
    Ok(Check::new(attributes, cost, up_to)?)
}

/// Reads `attribute value ... [COST n] [AT micros]`.
fn refund<'a>(command: &Command<'a>) -> Result<Refund<'a>, CommandError> {
    let mut options = [("COST", None), ("AT", None)];
    let attributes = read_pairs(command, &mut options)?;
    let [cost, charged_at] = options;
    Ok(Refund::new(attributes, number(cost)?, number(charged_at)?)?)
}

/// Reads `attribute value ... [COST n] [TTL millis] [KEY text]`.
fn reserve<'a>(command: &Command<'a>) -> Result<Question<'a>, CommandError> {
    let mut options = [("COST", None), ("TTL", None), ("KEY", None)];
    let attributes = read_pairs(command, &mut options)?;
    let [cost, ttl, (_, key)] = options;
    Ok(Question::Reserve {
        attributes,
        units: number(cost)?.unwrap_or(1),
        ttl: number(ttl)?.map(millis),
        idempotency_key: key.map(|key| text("KEY", key)).transpose()?,
    })
}

/// Reads `attribute value ... [TTL millis] [OWNER text] [WAIT millis]`.
fn acquire<'a>(command: &Command<'a>) -> Result<Question<'a>, CommandError> {
    let mut options = [("TTL", None), ("OWNER", None), ("WAIT", None)];
    let attributes = read_pairs(command, &mut options)?;
    let [ttl, (_, owner), wait] = options;
    let owner = owner.map(|owner| text("OWNER", owner)).transpose()?;
    Ok(Question::AcquireLease {
        attributes,
        ttl: number(ttl)?.map(millis),
        owner: owner.unwrap_or_default(),
        wait: number(wait)?.map_or(Span::ZERO, millis),
        asked: None,
    })
}

/// Reads `tenant [PERIOD period] [ACTION action] [RULE rule]`.
fn usage<'a>(command: &Command<'a>) -> Result<Question<'a>, CommandError> {
    let mut options = [("PERIOD", None), ("ACTION", None), ("RULE", None)];
    let mut args = command.args_from(2);
    while let Some(name) = args.next() {
        let value = args.next().ok_or(CommandError::Syntax)?;
        if !set_option(&mut options, name, value)? {
            return Err(CommandError::Syntax);
        }
    }
    let [period, action, rule] = options;
    let optional = |(name, value): Opt<'a>| value.map(|value| text(name, value)).transpose();
    Ok(Question::Usage(UsageQuestion {
        tenant: text("the tenant", command.arg(1).unwrap_or_default())?,
        period: optional(period)?,
        action: optional(action)?,
        rule: optional(rule)?,
    }))
}

/// The name of an option, and its value if it is given.
type Opt<'a> = (&'static str, Option<&'a [u8]>);

/// Reads the value of an option that is a number.
fn number((name, value): Opt<'_>) -> Result<Option<u64>, CommandError> {
    value.map(|value| amount(name, value)).transpose()
}

/// Reads pairs. If the first part of a pair is one of `options`, in upper or lower case, the pair is
/// that option. The other pairs are attributes.
fn read_pairs<'a>(
    command: &Command<'a>,
    options: &mut [Opt<'a>],
) -> Result<AttributeMap<'a>, CommandError> {
    let mut attributes = AttributeMap::default();
    let mut args = command.args_from(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or(CommandError::OddAttributes)?;
        if set_option(options, name, value)? {
            continue;
        }
        let utf8 = std::str::from_utf8(name);
        let name = utf8.map_err(|_| BadQuestion::AttributeName { name: shown(name) })?;
        match std::str::from_utf8(value) {
            Ok(value) => attributes.add(name, value)?,
            Err(_) => return Err(CommandError::NotText(name.chars().take(80).collect())),
        }
    }
    Ok(attributes)
}

/// Sets the option of this name. Returns whether there is an option of this name.
fn set_option<'a>(
    options: &mut [Opt<'a>],
    name: &[u8],
    value: &'a [u8],
) -> Result<bool, CommandError> {
    let mut options = options.iter_mut();
    let option = options.find(|(option, _)| name.eq_ignore_ascii_case(option.as_bytes()));
    match option {
        None => Ok(false),
        Some((option, Some(_))) => Err(CommandError::OptionTwice(option)),
        Some((_, given)) => {
            *given = Some(value);
            Ok(true)
        }
    }
}

fn hold_name(bytes: &[u8]) -> Result<HoldName, CommandError> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    Ok(text.parse().map_err(BadQuestion::HoldName)?)
}

fn text<'a>(name: &'static str, bytes: &'a [u8]) -> Result<Text<'a>, CommandError> {
    if bytes.len() > MAX_VALUE {
        return Err(BadQuestion::LongText { what: name }.into());
    }
    let text = std::str::from_utf8(bytes).map_err(|_| CommandError::OptionNotText(name))?;
    Ok(text.into())
}
