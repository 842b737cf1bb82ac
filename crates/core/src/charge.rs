//! The charge: what a request costs under one rule. Rules make charges, and stores decide them.

use crate::{CarryOver, Key, Limit, Subject};

/// What one rule asks of the store for one request.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The key of the subject's state.
    pub key: Key,
    /// The key of the state that new subjects of the rule share while the store is full.
    pub overflow: Key,
    /// The rule's name, for stores with readable keys.
    pub rule: &'a str,
    /// Keys with the same tag are stored on the same server.
    pub tag: Tag,
    /// The algorithm and its numbers.
    pub limit: &'a Limit,
    /// What one unit of the request costs.
    pub cost: u64,
    /// Whether the charge can deny the request.
    pub enforcement: Enforcement,
    /// What a denied request does to the state.
    pub on_denied: OnDenied,
    /// What happens to a state that was written under other numbers.
    pub carry_over: CarryOver,
    /// How the usage of the charge is recorded outside the store; `None` if it is not recorded. If a
    /// recorded charge has no state, its usage is unknown: it has to be restored before the store can
    /// decide.
    pub recorded: Option<Recorded<'a>>,
    /// How far a commit that exceeds its reservation may take the allowance below zero.
    pub overdraft: u64,
}

impl<'a> Charge<'a> {
    /// Returns a charge of cost 1 that enforces `limit` on the state of `key`. A denied request does
    /// not change the state, and a change of the numbers keeps it.
    ///
    /// The charge has no rule: its name and tag are empty, and its overflow key is that of a rule
    /// without a salt. All charges without a rule share one state per algorithm when a store is full.
    /// Set the fields that differ:
    ///
    /// ```
    /// use tollgate_core::{Charge, Key, Limit, Span};
    ///
    /// let limit = Limit::fixed_window(100, Span::MINUTE)?;
    /// let search = Charge::new(Key::from_bits(7), &limit);
    /// let export = Charge { cost: 20, ..search };
    /// assert!(export.enforces());
    /// # Ok::<(), tollgate_core::ParamError>(())
    /// ```
    #[must_use]
    #[inline]
    pub const fn new(key: Key, limit: &'a Limit) -> Charge<'a> {
        Charge {
            key,
            overflow: Key::from_bits(0),
            rule: "",
            tag: Tag::new(0),
            limit,
            cost: 1,
            enforcement: Enforcement::Enforce,
            on_denied: OnDenied::Nothing,
            carry_over: CarryOver::Keep,
            recorded: None,
            overdraft: 0,
        }
    }

    /// Returns whether the charge can deny the request.
    #[must_use]
    pub fn enforces(&self) -> bool {
        self.enforcement == Enforcement::Enforce
    }

    /// Returns whether a denied request is charged like an allowed one.
    #[must_use]
    pub fn counts_denied(&self) -> bool {
        self.on_denied == OnDenied::Charge
    }

    /// Returns whether a denied request may change the state. If so, the store has to see denied
    /// requests.
    #[must_use]
    pub fn sees_denied(&self) -> bool {
        self.on_denied != OnDenied::Nothing
    }

    /// Returns whether a missing state has to be restored before the store can decide.
    #[must_use]
    pub fn needs_state(&self) -> bool {
        self.recorded.is_some() && matches!(self.limit, Limit::Quota(_))
    }

    /// Returns the subject of the key.
    #[must_use]
    pub fn subject(&self) -> Subject {
        self.key.subject(self.overflow.into())
    }
}

/// How the usage of a charge is recorded: its names, and whether the answer waits for the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded<'a> {
    /// The id of the rule. Several rules may share one allowance, which [`Charge::rule`] names.
    pub rule: &'a str,
    /// The tenant of the request; empty if it has none.
    pub tenant: &'a str,
    /// The action of the request; empty if it has none.
    pub action: &'a str,
    /// Whether the request is answered only after its usage was recorded.
    pub strict: bool,
}

/// Groups keys on one server: keys with the same tag are stored together. Unrelated keys may share a
/// tag by accident, which does no harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u32);

impl Tag {
    /// Returns the tag with this number.
    #[must_use]
    pub const fn new(number: u32) -> Tag {
        Tag(number)
    }

    /// Splits the keys of this tag into groups, and returns the tag of group number `group`.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // There are only a few groups.
    pub const fn group(self, group: u64) -> Tag {
        // An odd factor gives each group another tag, spread over the cluster slots.
        Tag(self
            .0
            .wrapping_add((group as u32).wrapping_mul(0x9E37_79B9)))
    }

    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Whether a charge can deny its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// The charge can deny.
    Enforce,
    /// The charge never denies. It is charged if the request is allowed and its own limit allows.
    Shadow,
    /// The charge never denies: it is a candidate for the charge at this index of the request. A
    /// candidate is charged if its limit and all other enforcing charges allow the request. The charge
    /// that it would replace does not matter, nor do the back-offs that watch that charge. Without a
    /// charge at this index, a candidate acts as a shadow.
    Instead(u8),
}

/// What a denied request does to the state of a charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDenied {
    /// Nothing.
    #[default]
    Nothing,
    /// The denied request is charged like an allowed request, whichever charge denies it.
    Charge,
    /// For a [`Limit::Backoff`]: counts a strike if the charge at this index of the request denies it,
    /// and a penalty if the back-off itself does. Denials by other charges change nothing. Without a
    /// charge at this index there are no strikes.
    ///
    /// The back-off should enforce if the watched charge enforces, and have the same tag: a charge in
    /// another cluster slot cannot be watched. The cost of the back-off should be 1: a cost of 0 is
    /// neither denied nor counted.
    Strike(u8),
}

impl OnDenied {
    /// Returns [`OnDenied::Charge`] if denied requests are charged.
    #[must_use]
    pub const fn charged(charged: bool) -> OnDenied {
        if charged {
            OnDenied::Charge
        } else {
            OnDenied::Nothing
        }
    }
}
