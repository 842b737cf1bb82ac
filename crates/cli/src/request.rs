//! A request given on the command line.

use clap::Args;
use tollgate::{Ask, Attributes};

/// What the request is.
#[derive(Args)]
pub(crate) struct RequestArgs {
    /// What the request carries, such as tenant=acme action=search
    #[arg(value_name = "NAME=VALUE", value_parser = attribute, required = true)]
    attributes: Vec<(String, String)>,

    /// How many units it costs; 0 only looks
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) cost: u64,

    /// Take as much as there is, up to the cost
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
        if self.up_to {
            Ask::UpTo(self.cost)
        } else {
            Ask::Exactly(self.cost)
        }
    }
}

fn attribute(text: &str) -> Result<(String, String), String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err("write an attribute as name=value".to_owned());
    };
    if !tollgate_rules::is_attribute_name(name) {
        return Err(format!(
            "{name:?} is not an attribute name: write a letter or _, then letters, digits, _, . or -"
        ));
    }
    Ok((name.to_owned(), value.to_owned()))
}
