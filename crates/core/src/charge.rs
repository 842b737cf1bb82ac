//! The charge: what a request costs under one rule. Rules make charges, and stores decide them.

use crate::{CarryOver, Key, Limit, Mode, Subject, Time};

/// The cost of one request under one rule, with the limit and the key of the state.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The key of the subject's state.
    pub key: Key,
    /// The key of the state that new subjects of the rule share while the store is full.
    pub overflow: Key,
    /// The rule's name. Stores with readable keys put it into the key.
    pub rule: &'a str,
    /// Keys with the same tag are stored on the same server.
    pub tag: Tag,
    /// The store that decides the charge, if there are several.
    pub store: StoreId,
    /// Over how many keys the allowance is split; 0 if it has one key. Only a store that splits allowances
    /// heeds it.
    pub shards: u16,
    /// The algorithm and its numbers.
    pub limit: &'a Limit,
    /// The cost of each unit that the request asks for. Most requests ask for one unit.
    pub cost: u64,
    /// Whether the charge can deny the request.
    pub enforcement: Enforcement,
    /// What a denied request does to the state.
    pub on_denied: OnDenied,
    /// What happens to a state that was written under other numbers.
    pub carry_over: CarryOver,
    /// How the usage of the charge is recorded outside the store; `None` if it is not recorded. If a
    /// recorded charge has no state in the store, its usage is unknown. Then the state has to be restored
    /// before the store can decide.
    pub recorded: Option<Recorded<'a>>,
    /// How far a commit that exceeds its reservation may take the allowance below zero.
    pub overdraft: u64,
    /// Whether the subject is anonymous: a client without a name, found by its address. Strangers can make many
    /// such subjects, so a store may keep fewer of them.
    pub anonymous: bool,
    /// The time of the request, if the caller brings one; otherwise the epoch. Only a store that goes by the
    /// caller's clock uses it. It is the same in all charges of a request.
    pub at: Time,
    /// Where the charge is decided. Stores that keep states decide every charge exactly, whatever its mode.
    pub mode: Mode,
}

impl<'a> Charge<'a> {
    /// Returns a charge of cost 1 that enforces `limit` on the state of `key`. A denied request does
    /// not change the state, and a change of the numbers keeps the state.
    ///
    /// The charge has no rule: its name and tag are empty, and its overflow key is that of a rule
    /// without a salt. When a store is full, all new subjects of charges without a rule share one state
    /// per algorithm. To change a default, set the field:
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
            store: StoreId::DEFAULT,
            shards: 0,
            limit,
            cost: 1,
            enforcement: Enforcement::Enforce,
            on_denied: OnDenied::Nothing,
            carry_over: CarryOver::Keep,
            recorded: None,
            overdraft: 0,
            anonymous: false,
            at: Time::from_micros(0),
            mode: Mode::Exact,
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

    /// Returns whether a denied request may change the state. If so, the store has to decide every request:
    /// a known denial must not answer in its place.
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
    /// The id of the rule. If several rules share one allowance, [`Charge::rule`] is the name of that
    /// allowance.
    pub rule: &'a str,
    /// The tenant of the request; empty if it has none.
    pub tenant: &'a str,
    /// The action of the request; empty if it has none.
    pub action: &'a str,
    /// Whether the request is answered only after its usage was recorded.
    pub strict: bool,
}

/// Groups keys on one server: keys with the same tag are stored together. It does no harm if unrelated
/// keys have the same tag by accident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u32);

impl Tag {
    /// Returns the tag with this number.
    #[must_use]
    pub const fn new(number: u32) -> Tag {
        Tag(number)
    }

    /// Returns the tag of group number `group`, when the keys of this tag are split into groups.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // There are only a few groups.
    pub const fn group(self, group: u64) -> Tag {
        // Because the factor is odd, each group gets its own tag. The tags spread over the cluster slots.
        Tag(self
            .0
            .wrapping_add((group as u32).wrapping_mul(0x9E37_79B9)))
    }

    /// Returns the number of the tag.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Identifies a store of a deployment with several stores. It is computed from the store's name, so it does
/// not depend on the order of stores in a config.
///
/// ```
/// use tollgate_core::StoreId;
///
/// assert_eq!(StoreId::named("abuse"), StoreId::named("abuse"));
/// assert_ne!(StoreId::named("abuse"), StoreId::DEFAULT);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreId(u32);

impl StoreId {
    /// The store of charges that name no store.
    pub const DEFAULT: StoreId = StoreId(0);
    /// The store in the memory of this instance, which no other instance sees.
    pub const LOCAL: StoreId = StoreId(1);

    /// Returns the id of the store with this name. Two names have the same id only by accident, about once in
    /// four thousand million pairs of names.
    #[must_use]
    pub const fn named(name: &str) -> StoreId {
        // FNV-1a: short, and the same on every machine.
        let (bytes, mut at, mut hash) = (name.as_bytes(), 0, 0x811c_9dc5_u32);
        while at < bytes.len() {
            hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
            at += 1;
        }
        match hash {
            0 | 1 => StoreId(2),
            _ => StoreId(hash),
        }
    }

    /// Returns the id with this number.
    #[must_use]
    pub const fn new(number: u32) -> StoreId {
        StoreId(number)
    }

    /// Returns the number of the id.
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
    /// The charge never denies, but the store decides it. If the request passes, and the limit of this charge
    /// also allows it, the store takes the cost.
    Shadow,
    /// The charge never denies. It is a candidate that would replace the charge at this index of the
    /// request. The cost is taken if the candidate's limit and all other enforcing charges allow the
    /// request. The replaced charge, and back-offs that watch it, have no influence. Without a charge at
    /// this index, a candidate acts as a shadow.
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
    /// For a [`Limit::Backoff`]. The back-off counts a strike if the charge at this index denies the
    /// request, and a penalty if the back-off itself denies the request. Denials by other charges change
    /// nothing. Without a charge at this index there are no strikes.
    ///
    /// If the watched charge enforces, the back-off should enforce too. Both need the same store and the same
    /// tag, because a back-off cannot watch a charge in another store or cluster slot. The cost of the back-off should be 1: a
    /// back-off with a cost of 0 does not deny or count.
    Strike(u8),
    /// For a [`Limit::Fair`]. The bucket notes which clients it denies: others get what these clients leave,
    /// and keep what they have saved up. Denials by other charges change nothing.
    Note,
}

impl OnDenied {
    /// Returns [`OnDenied::Charge`] if denied requests are charged, and [`OnDenied::Nothing`] otherwise.
    #[must_use]
    pub const fn charged(charged: bool) -> OnDenied {
        if charged {
            OnDenied::Charge
        } else {
            OnDenied::Nothing
        }
    }
}
