//! Evaluation of an expression for one request.
//!
//! A missing attribute is recognised without looking at values that a client chooses. A missing
//! top-level name is an undeclared reference. A key that is missing from `attributes` fails with an
//! error that only this module can make.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::common::traits::{Container, Indexer, Iterable, Sizer};
use cel::common::types::{CelBool, CelDouble, CelInt, CelMap, CelMapKey, CelString, Type};
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::{Context, Env, ExecutionError, Value};
use tollgate_core::MAX_AMOUNT;

use super::{Expr, network};
use crate::attributes::Attributes;
use crate::raw::AttributeType;

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    // This fails only if the name is taken, and a test shows that it is free.
    let _ = network::declare(&mut env);
    Arc::new(env)
});
/// Marks the error of a missing attribute. The mark is recognised by its memory address, so a request
/// cannot forge the error.
static ABSENT: LazyLock<Arc<String>> = LazyLock::new(|| Arc::new("attributes".to_owned()));

/// Why an expression has no value for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The request lacks an attribute: its name, if known.
    Missing(Option<String>),
    /// The expression fails on the values of the request.
    Broken(String),
}

impl Expr {
    /// Evaluates a `when`.
    pub(crate) fn holds(&self, attributes: &Attributes<'_>) -> Result<bool, Failure> {
        self.evaluate(attributes, |value| match value.downcast_ref::<CelBool>() {
            Some(value) => Ok(*value.inner()),
            None => Err(Failure::Broken(
                "the expression does not yield a bool".to_owned(),
            )),
        })
    }

    /// Evaluates a `cost`.
    pub(crate) fn cost(&self, attributes: &Attributes<'_>) -> Result<u64, Failure> {
        self.evaluate(attributes, |value| {
            let broken = |how: String| Err(Failure::Broken(how));
            let Some(cost) = value.downcast_ref::<CelInt>() else {
                return broken("the expression does not yield an int".to_owned());
            };
            match u64::try_from(*cost.inner()) {
                Ok(cost) if cost <= MAX_AMOUNT => Ok(cost),
                Ok(cost) => broken(format!("a cost of {cost} is too large")),
                Err(_) => broken(format!("a cost of {} is negative", cost.inner())),
            }
        })
    }

    fn evaluate<T>(
        &self,
        attributes: &Attributes<'_>,
        take: impl FnOnce(&dyn Val) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.check_types(attributes)?;
        let names = Names {
            expr: self,
            attributes,
            map: self.reads_map.then(|| AttributeMap::new(attributes)),
        };
        let mut context = Context::with_env(Arc::clone(&ENV));
        context.set_variable_resolver(&names);
        match Value::resolve_val(self.program.expression(), &context) {
            Ok(value) => take(&*value),
            Err(ExecutionError::UndeclaredReference(name)) => {
                // The evaluator reports only the first part of a dotted name.
                let whole = |known: &&String| known.split('.').next() == Some(name.as_str());
                Err(Failure::Missing(self.names.iter().find(whole).cloned()))
            }
            Err(ExecutionError::NoSuchKey(key)) if Arc::ptr_eq(&key, &ABSENT) => {
                Err(Failure::Missing(None))
            }
            Err(error) => Err(Failure::Broken(error.to_string())),
        }
    }

    /// Fails if an attribute does not have its declared type.
    fn check_types(&self, attributes: &Attributes<'_>) -> Result<(), Failure> {
        for (name, ty) in self.names.iter().zip(&self.types) {
            if let (Some(ty), Some(value)) = (ty, attributes.get(name))
                && typed(*ty, value).is_none()
            {
                let (ty, but) = (ty.name(), "but its value in this request is not one");
                return Err(Failure::Broken(format!(
                    "{name} is declared as {ty}, {but}"
                )));
            }
        }
        Ok(())
    }
}

/// Converts the value of an attribute to the declared type; `None` if the value is not of that type.
fn typed(ty: AttributeType, value: &str) -> Option<CowVal<'_, '_>> {
    Some(match ty {
        AttributeType::String => CowVal::owned(CelString::from(value)),
        AttributeType::Int => CowVal::owned(CelInt::from(value.parse::<i64>().ok()?)),
        AttributeType::Double => {
            let number = value.parse::<f64>().ok().filter(|it| it.is_finite())?;
            CowVal::owned(CelDouble::from(number))
        }
        AttributeType::Bool => match value {
            "true" => CowVal::owned(CelBool::from(true)),
            "false" => CowVal::owned(CelBool::from(false)),
            _ => return None,
        },
    })
}

/// The names of an expression, looked up in a request. Only names that the expression reads as
/// attributes are found, so that a request cannot define other names.
struct Names<'q, 'a> {
    expr: &'q Expr,
    attributes: &'q Attributes<'a>,
    map: Option<AttributeMap<'a>>,
}

impl VariableResolver for Names<'_, '_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        if variable == "attributes"
            && let Some(map) = &self.map
        {
            return Some(CowVal::Borrowed(map));
        }
        let place = self.expr.names.iter().position(|it| it == variable)?;
        let ty = self.expr.types[place].unwrap_or(AttributeType::String);
        typed(ty, self.attributes.get(variable)?)
    }
}

/// The map of all attributes.
#[derive(Clone, Debug)]
struct AttributeMap<'v>(CelMap<'v>);

impl<'v> AttributeMap<'v> {
    fn new(attributes: &Attributes<'v>) -> AttributeMap<'v> {
        let entry = |(name, value): (&'v str, &'v str)| {
            let value: Box<dyn Val + 'v> = Box::new(CelString::from(value));
            (CelMapKey::String(CelString::from(name)), value)
        };
        let entries: HashMap<_, _> = attributes.iter().map(entry).collect();
        AttributeMap(CelMap::from(entries))
    }
}

impl Val for AttributeMap<'_> {
    fn get_type(&self) -> &Type {
        self.0.get_type()
    }

    fn cel_type() -> &'static Type {
        CelMap::cel_type()
    }

    fn as_container(&self) -> Option<&dyn Container> {
        self.0.as_container()
    }

    fn as_indexer<'b, 'w>(&'b self) -> Option<&'b (dyn Indexer + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_iterable<'b, 'w>(&'b self) -> Option<&'b (dyn Iterable + 'w)>
    where
        Self: 'w,
    {
        self.0.as_iterable()
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        self.0.as_sizer()
    }

    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(self.clone())
    }
}

impl Indexer for AttributeMap<'_> {
    fn get<'b, 'w>(&'b self, index: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        self.0.get(index).map_err(absent)
    }

    fn steal<'w>(self: Box<Self>, index: &dyn Val) -> Result<Box<dyn Val + 'w>, ExecutionError>
    where
        Self: 'w,
    {
        Box::new(self.0).steal(index).map_err(absent)
    }
}

fn absent(error: ExecutionError) -> ExecutionError {
    match error {
        ExecutionError::NoSuchKey(_) => ExecutionError::NoSuchKey(Arc::clone(&ABSENT)),
        other => other,
    }
}
