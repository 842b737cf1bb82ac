//! `cidr("10.0.0.0/8")`: a network, as a value of an expression. `ip in cidr(…)` asks whether an address
//! is in it.

use cel::common::traits::Container;
use cel::common::types::{CelString, STRING_TYPE, Type};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};
use ipnet::IpNet;

use crate::address::{parse_address, parse_network};

/// The name of the function.
pub(super) const CIDR: &str = "cidr";

static TYPE: Type = Type::new_unspecified_type("network");

#[derive(Clone, Copy, Debug)]
struct Network(IpNet);

/// Adds the function to the language.
pub(super) fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_overload(CIDR, "cidr_string", vec![STRING_TYPE], cidr)
}

#[allow(clippy::needless_pass_by_value)] // The evaluator sets the type of functions.
fn cidr<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let text = arguments.first();
    let text = text.and_then(|text| text.downcast_ref::<CelString<'_>>());
    // The checker has parsed the network before.
    let network = text.and_then(|text| parse_network(text.inner()).ok());
    let network = network.ok_or_else(|| ExecutionError::function_error(CIDR, "not a network"))?;
    Ok(CowVal::owned(Network(network)))
}

impl Val for Network {
    fn get_type(&self) -> &Type {
        &TYPE
    }

    fn cel_type() -> &'static Type {
        &TYPE
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(*self)
    }
}

impl Container for Network {
    /// Whether a text is an address in the network. A text that is not an address is in no network.
    fn contains(&self, value: &dyn Val) -> Result<bool, ExecutionError> {
        let text = value.downcast_ref::<CelString<'_>>();
        let address = text.and_then(|text| parse_address(text.inner()));
        Ok(address.is_some_and(|address| self.0.contains(&address)))
    }
}
