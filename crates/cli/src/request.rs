//! A request given on the command line.

use clap::Args;
use tollgate::{Ask, Attributes};

#[derive(Args)]
pub(crate) struct RequestArgs {
    /// The attributes of the request, such as tenant=acme action=search
    #[arg(value_name = "NAME=VALUE", value_parser = attribute, required = true)]
    attributes: Vec<(String, String)>,

    /// How many units the request costs; 0 only reads the current state
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) cost: u64,

    /// Take what is left if it is less than the cost
    #[arg(long)]
    pub(crate) up_to: bool,
}

impl RequestArgs {
    pub(crate) fn attributes(&self) -> Attributes<'_> {
        self.pairs().collect()
    }

    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.attributes
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(crate) fn ask(&self) -> Ask {
        match self.up_to {
            true => Ask::UpTo(self.cost),
            false => Ask::Exactly(self.cost),
        }
    }
}

/// Splits `NAME=VALUE`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err("expected NAME=VALUE".to_owned()),
    }
}

/// Reads `NAME=VALUE` with the name of an attribute.
pub(crate) fn attribute(text: &str) -> Result<(String, String), String> {
    let (name, value) = pair(text)?;
    if !tollgate_rules::is_attribute_name(&name) {
        return Err(format!(
            "{name:?} is not an attribute name: start with a letter or _, then use letters, digits, _, . or -"
        ));
    }
    Ok((name, value))
}
