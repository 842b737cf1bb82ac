//! Checks the expressions of rules: `when` and `cost`.

use std::sync::Arc;

use tollgate_core::MAX_AMOUNT;

use super::rule::conditions;
use crate::attributes::Attributes;
use crate::document::{At, BadValue, Field, Place, Problems, whole};
use crate::expr::{self, Declared, Expr, Failure, Want};
use crate::raw::{Formula, RawCost};
use crate::rule::{Cost, CostTable};

/// Returns the cost of a request. `None` if the field is broken; the problem was reported.
pub(super) fn cost(
    field: &Field<RawCost>,
    declared: &Declared,
    problems: &mut Problems<'_>,
) -> Option<Cost> {
    let table = match field {
        Field::Absent => return Some(Cost::Fixed(1)),
        Field::Broken { .. } => return None,
        Field::Given { at, .. } => match &at.value {
            RawCost::One(formula) => return one_cost(at.place, formula, declared, problems),
            RawCost::Table(table) => table,
        },
    };
    let given = table.table.value()?;
    let mut complete = true;
    let mut rows = Vec::with_capacity(given.0.len());
    for row in &given.0 {
        let start = Place::new(row.place.start, row.place.start);
        let conditions = conditions(row.value.matches.value(), problems);
        if row.value.matches.is_absent() {
            let help = "add the requests that it matches, such as `match: { action: search }`";
            problems.report(start, "this row of costs has no `match`", help);
        }
        if row.value.cost.is_absent() {
            let help = "add the cost, such as `cost: 5`";
            problems.report(start, "this row of costs has no `cost`", help);
        }
        let cost = row.value.cost.get();
        let cost = cost.and_then(|at| one_cost(at.place, &at.value, declared, problems));
        match cost {
            Some(cost) => rows.push((conditions, cost)),
            None => complete = false,
        }
    }
    let otherwise = match &table.otherwise {
        Field::Absent => Cost::Fixed(1),
        Field::Broken { .. } => return None,
        Field::Given { at, .. } => one_cost(at.place, &at.value, declared, problems)?,
    };
    complete.then(|| Cost::Table(Arc::new(CostTable { rows, otherwise })))
}

/// Returns a cost that is a number or an expression.
fn one_cost(
    place: Place,
    formula: &Formula,
    declared: &Declared,
    problems: &mut Problems<'_>,
) -> Option<Cost> {
    let text = formula.text.trim();
    let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'_';
    if !text.starts_with(|c: char| c.is_ascii_digit()) || !text.bytes().all(is_number) {
        let expr = compiled(place, formula, Want::Int, declared, problems)?;
        if !expr.is_constant() {
            return Some(Cost::Expr(expr));
        }
        let cost = expr.cost(&Attributes::new()).map_err(always_fails);
        return problems.accept(place, cost).map(Cost::Fixed);
    }
    let cost = whole(text).and_then(|cost| {
        let message = format!("a cost of {text} is above the largest amount, {MAX_AMOUNT}");
        let bad = BadValue::new(message, "write a smaller cost");
        (cost <= MAX_AMOUNT).then_some(cost).ok_or(bad)
    });
    problems.accept(place, cost).map(Cost::Fixed)
}

pub(super) fn when(
    at: &At<Formula>,
    declared: &Declared,
    problems: &mut Problems<'_>,
) -> Option<Arc<Expr>> {
    let expr = compiled(at.place, &at.value, Want::Bool, declared, problems)?;
    if expr.is_constant() {
        let holds = expr.holds(&Attributes::new()).map_err(always_fails);
        problems.accept(at.place, holds);
    }
    Some(expr)
}

/// Describes the failure of an expression that reads no attributes. It would fail for every request.
fn always_fails(failure: Failure) -> BadValue {
    let how = match failure {
        Failure::Broken(how) => how,
        Failure::Missing(_) => "it reads an attribute that no request has".to_owned(),
    };
    let help = "this fails for every request: write an expression that has a value";
    BadValue::new(format!("not a usable value: {how}"), help)
}

fn compiled(
    place: Place,
    formula: &Formula,
    want: Want,
    declared: &Declared,
    problems: &mut Problems<'_>,
) -> Option<Arc<Expr>> {
    let faults = match expr::compile(&formula.text, want, declared) {
        Ok(expr) => return Some(Arc::new(expr)),
        Err(faults) => faults,
    };
    for fault in faults {
        let inside = formula.verbatim.zip(fault.range).map(|(start, range)| {
            let end = (start + range.end).min(place.end);
            Place::new((start + range.start).min(end), end)
        });
        problems.report(inside.unwrap_or(place), fault.message, fault.help);
    }
    None
}
