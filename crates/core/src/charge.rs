//! What a request costs under one rule: the word that rules and stores share.

use crate::{CarryOver, Key, Limit, Subject};

/// One rule's demand on the store.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// Where the subject's state is kept.
    pub key: Key,
    /// Where the state is kept that strangers share when the store is full.
    pub overflow: Key,
    /// The rule's name, for stores whose keys people may read.
    pub rule: &'a str,
    /// Keys with the same tag are kept by the same server.
    pub tag: Tag,
    /// The numbers.
    pub limit: &'a Limit,
    /// The cost of one unit of the request.
    pub cost: u64,
    /// Whether a refusal counts.
    pub enforcement: Enforcement,
    /// What a refused request does to the state.
    pub on_denied: OnDenied,
    /// What becomes of the state if it was written under other numbers.
    pub carry_over: CarryOver,
    /// How its usage is recorded outside the store; `None` if the store alone knows it. A recorded charge
    /// without a state has to be restored before anything can be decided.
    pub recorded: Option<Recorded<'a>>,
    /// How far below nothing the allowance may go when a reservation is settled for more than it held.
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

    /// Whether a refusal counts.
    #[must_use]
    pub fn enforces(&self) -> bool {
        self.enforcement == Enforcement::Enforce
    }

    /// Whether a refused request is charged all the same.
    #[must_use]
    pub fn counts_denied(&self) -> bool {
        self.on_denied == OnDenied::Charge
    }

    /// Whether a refused request may change the state, so that the store has to see it.
    #[must_use]
    pub fn sees_denied(&self) -> bool {
        self.on_denied != OnDenied::Nothing
    }

    /// Whether nothing can be decided without a state: the usage is recorded elsewhere and has to be
    /// restored from there.
    #[must_use]
    pub fn needs_state(&self) -> bool {
        self.recorded.is_some() && matches!(self.limit, Limit::Quota(_))
    }

    /// Whose state it is.
    #[must_use]
    pub fn subject(&self) -> Subject {
        self.key.subject(self.overflow.into())
    }
}

/// Under which names the usage of a charge is recorded, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded<'a> {
    /// The id of the rule. Several rules may share one allowance, which [`Charge::rule`] names.
    pub rule: &'a str,
    /// The tenant that the request names; empty if it names none.
    pub tenant: &'a str,
    /// The action that the request names; empty if it names none.
    pub action: &'a str,
    /// Whether the request is answered only after its usage was recorded.
    pub strict: bool,
}

/// What keys that are to be kept by the same server have in common. Different things may have the
/// same tag by accident, and are then kept by the same server without need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u32);

impl Tag {
    /// The tag of all that have this number.
    #[must_use]
    pub const fn new(number: u32) -> Tag {
        Tag(number)
    }

    /// The tag of one of several groups of what has this tag.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // A few groups.
    pub const fn group(self, group: u64) -> Tag {
        // An odd factor tells all groups apart, and spreads them over the slots.
        Tag(self
            .0
            .wrapping_add((group as u32).wrapping_mul(0x9E37_79B9)))
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Whether a rule may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// It may.
    Enforce,
    /// It is evaluated and charged to its own state, and never refuses.
    Shadow,
    /// Judged as if it stood in the place of the charge at this place of the request: never refuses,
    /// and is charged if it allows and every enforcing charge but that one, and those that watch it,
    /// allows. As a shadow where there is no such place.
    Instead(u8),
}

/// What a refused request does to the state of a charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDenied {
    /// Nothing.
    #[default]
    Nothing,
    /// It is charged all the same, whoever refuses.
    Charge,
    /// For a [`Limit::Backoff`]: counts a strike if the charge at this place of the request refuses,
    /// and a penalty if this one does. What only others refuse changes nothing, and where there is no
    /// such place there are no strikes.
    ///
    /// The charge should enforce if that one does, cost 1 (a cost of 0 is neither refused nor counted),
    /// and have its tag: in a cluster one that is kept in another slot is not watched.
    Strike(u8),
}

impl OnDenied {
    /// [`OnDenied::Charge`] if refused requests are to be charged.
    #[must_use]
    pub const fn charged(charged: bool) -> OnDenied {
        if charged {
            OnDenied::Charge
        } else {
            OnDenied::Nothing
        }
    }
}
