//! What a request costs under one rule: the word that rules and stores share.

use crate::{Key, Limit};

/// One rule's demand on the store.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// Where the subject's state is kept.
    pub key: Key,
    /// Where the state is kept that strangers share when the store is full.
    pub overflow: Key,
    /// The numbers.
    pub limit: &'a Limit,
    /// The cost of one unit of the request.
    pub cost: u64,
    /// Whether a refusal counts.
    pub enforcement: Enforcement,
    /// Whether a refused request is charged all the same.
    pub charge_denied: bool,
}

impl Charge<'_> {
    /// Whether a refusal counts.
    #[must_use]
    pub fn enforces(&self) -> bool {
        self.enforcement == Enforcement::Enforce
    }
}

/// Whether a rule may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// It may.
    Enforce,
    /// It is evaluated and charged to its own state, and never refuses.
    Shadow,
}
