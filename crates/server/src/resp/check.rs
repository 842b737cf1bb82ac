//! `TG.CHECK`, `TG.PEEK` and `TG.REFUND`: attributes in, what the rules decide out.

use tollgate::{Ask, Attributes, Time};
use tollgate_rules::is_attribute_name;

use super::error::{CommandError, shown};
use super::frame::Command;
use super::throttle::amount;
use crate::http::bounds::{MAX_ATTRIBUTES, MAX_VALUE};

/// What `TG.CHECK attribute value ... [COST n | UPTO n]` asks for.
pub(super) struct Checked<'a> {
    pub(super) attributes: Attributes<'a>,
    pub(super) ask: Ask,
}

/// What `TG.REFUND attribute value ... [COST n] [AT micros]` asks for.
pub(super) struct Refunded<'a> {
    pub(super) attributes: Attributes<'a>,
    pub(super) units: u64,
    /// Not knowing is the same as the latest possible instant.
    pub(super) charged_at: Time,
}

impl<'a> Checked<'a> {
    pub(super) fn read(command: &Command<'a>) -> Result<Checked<'a>, CommandError> {
        let mut options = [("COST", None), ("UPTO", None)];
        let attributes = read(command, &mut options)?;
        let [cost, up_to] = options;
        let ask = match [number(cost)?, number(up_to)?] {
            [Some(_), Some(_)] => return Err(CommandError::CostAndUpTo),
            [None, Some(units)] => Ask::UpTo(units),
            [units, None] => Ask::Exactly(units.unwrap_or(1)),
        };
        Ok(Checked { attributes, ask })
    }
}

impl<'a> Refunded<'a> {
    pub(super) fn read(command: &Command<'a>) -> Result<Refunded<'a>, CommandError> {
        let mut options = [("COST", None), ("AT", None)];
        let attributes = read(command, &mut options)?;
        let [units, charged_at] = options;
        Ok(Refunded {
            attributes,
            units: number(units)?.unwrap_or(1),
            charged_at: number(charged_at)?.map_or(Time::MAX, Time::from_micros),
        })
    }
}

/// An option by its name, and its value if it is given.
pub(super) type Opt<'a> = (&'static str, Option<&'a [u8]>);

/// The value of an option that is a number.
pub(super) fn number((name, value): Opt<'_>) -> Result<Option<u64>, CommandError> {
    value.map(|value| amount(name, value)).transpose()
}

/// Reads pairs: those whose first is one of `options`, in upper or lower case, are that option, and the
/// others attributes.
pub(super) fn read<'a, const N: usize>(
    command: &Command<'a>,
    options: &mut [Opt<'a>; N],
) -> Result<Attributes<'a>, CommandError> {
    let mut attributes = Attributes::new();
    let mut args = command.args_from(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or(CommandError::OddAttributes)?;
        let option = options
            .iter_mut()
            .find(|(option, _)| name.eq_ignore_ascii_case(option.as_bytes()));
        match option {
            Some((option, Some(_))) => return Err(CommandError::OptionTwice(option)),
            Some((_, given)) => *given = Some(value),
            None => add(&mut attributes, name, value)?,
        }
    }
    Ok(attributes)
}

fn add<'a>(
    attributes: &mut Attributes<'a>,
    name: &'a [u8],
    value: &'a [u8],
) -> Result<(), CommandError> {
    let name = std::str::from_utf8(name)
        .ok()
        .filter(|name| is_attribute_name(name))
        .ok_or_else(|| CommandError::AttributeName(shown(name)))?;
    if value.len() > MAX_VALUE {
        return Err(CommandError::LongValue(name.to_owned()));
    }
    let value = std::str::from_utf8(value).map_err(|_| CommandError::NotText(name.to_owned()))?;
    if attributes.get(name).is_some() {
        return Err(CommandError::AttributeTwice(name.to_owned()));
    }
    if attributes.len() == MAX_ATTRIBUTES {
        return Err(CommandError::ManyAttributes);
    }
    attributes.push(name, value);
    Ok(())
}
