//! The fields of costs, and the types of attributes in expressions.

use super::{Conditions, Formula};
use crate::document::{List, Node, Problems, Read, Value, schema, section, words};

words! {
    /// The type of an attribute in expressions.
    pub enum AttributeType is "a type" {
        /// Text, the default.
        String = "string",
        /// A whole number.
        Int = "int",
        /// A number.
        Double = "double",
        /// True or false.
        Bool = "bool",
    }
}

section! {
    /// A table of costs: the first row that matches a request sets its cost.
    pub(crate) struct RawCostTable is "a table of costs" {
        /// The rows, in order.
        table (required): List<RawCostRow> = "table",
        /// The cost of a request that matches no row (default 1).
        otherwise: Formula = "otherwise",
    }
}

section! {
    /// A row of a table of costs.
    pub(crate) struct RawCostRow is "a row of costs" {
        /// Which requests: attribute to value, list of values, or glob. All must hold.
        matches (required): Conditions = "match",
        /// Their cost: a number, or a CEL expression that yields an int.
        cost (required): Formula = "cost",
    }
}

/// One cost for all requests, or a table.
#[derive(Debug)]
pub(crate) enum RawCost {
    One(Formula),
    Table(Box<RawCostTable>),
}

impl Read for RawCost {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<RawCost> {
        match &node.value {
            Value::Map(_) => {
                let table = RawCostTable::read(node, problems)?;
                Some(RawCost::Table(Box::new(table)))
            }
            _ => Formula::read(node, problems).map(RawCost::One),
        }
    }
}

schema!(RawCost, "Cost", generator => { "anyOf": [generator.subschema_for::<Formula>(), generator.subschema_for::<RawCostTable>()] });
