//! One request while the rules are evaluated: the values of its attributes, and its subjects.
//!
//! A value is looked up once, and a subject is hashed once. A request is built where it is used, because a copy of
//! its tables would cost time.

use std::borrow::Cow;

use smallvec::SmallVec;
use tollgate_core::{Subject, SubjectKind};

use crate::address;
use crate::attributes::Attributes;
use crate::ruleset::RuleSet;
use crate::symbols::{AttributeId, INLINE as INLINE_VALUES, Values};

/// One request while the rules are evaluated.
pub(crate) struct Request<'q, 'a> {
    pub(crate) attributes: &'q Attributes<'a>,
    pub(crate) values: Values<'a>,
    subjects: Subjects,
}

/// The subjects that are hashed so far, by their set of attributes.
type Subjects = SmallVec<[Option<Subject>; INLINE]>;

/// How many subjects fit without an allocation.
const INLINE: usize = 8;

/// A set of attributes that make a subject, sorted by name: the order in which a rule lists them does not matter.
#[derive(Debug)]
pub(crate) struct SubjectSet {
    pub(crate) ids: Box<[AttributeId]>,
    pub(crate) kind: SubjectKind,
    /// Whether one of the attributes is an address.
    pub(crate) has_address: bool,
    /// The subject of all requests, if the set is empty.
    pub(crate) of_all: Option<Subject>,
}

impl<'q, 'a> Request<'q, 'a> {
    /// Makes the request, without values yet. [`look_up`](Self::look_up) must follow: to do both here would copy the
    /// request.
    #[inline(always)]
    pub(crate) fn new(rules: &RuleSet, attributes: &'q Attributes<'a>) -> Request<'q, 'a> {
        let (values, sets) = (rules.symbols.count(), rules.subjects.len());
        Request {
            attributes,
            values: Values::from_buf_and_len([None; INLINE_VALUES], values.min(INLINE_VALUES)),
            subjects: Subjects::from_buf_and_len([None; INLINE], sets.min(INLINE)),
        }
    }

    /// Looks up the values.
    #[inline(always)]
    pub(crate) fn look_up(&mut self, rules: &RuleSet) {
        let (values, sets) = (rules.symbols.count(), rules.subjects.len());
        if values > INLINE_VALUES || sets > INLINE {
            self.values.resize(values, None);
            self.subjects.resize(sets, None);
        }
        rules.symbols.fill(self.attributes, &mut self.values);
    }
}

impl RuleSet {
    /// Starts a request, and looks up its values.
    pub(crate) fn request<'q, 'a>(&self, attributes: &'q Attributes<'a>) -> Request<'q, 'a> {
        let mut request = Request::new(self, attributes);
        request.look_up(self);
        request
    }

    /// Returns the subject of the set of attributes at index `set`. If the request lacks an attribute
    /// of the set, returns that attribute as the error.
    pub(crate) fn subject(
        &self,
        set: usize,
        request: &mut Request<'_, '_>,
    ) -> Result<Subject, AttributeId> {
        if let Some(known) = request.subjects[set] {
            return Ok(known);
        }
        let SubjectSet {
            ids,
            kind,
            has_address,
            of_all,
        } = &self.subjects[set];
        if let Some(subject) = of_all {
            return Ok(*subject);
        }
        let values = request.values.as_slice();
        let mut absent = None;
        let present = ids.iter().map_while(|id| {
            let value = values[*id as usize];
            if value.is_none() {
                absent = Some(*id);
            }
            value
        });
        let subject = match has_address {
            false => kind.subject(present),
            true => self.subject_with_address(kind, ids, present),
        };
        match absent {
            Some(absent) => Err(absent),
            None => {
                request.subjects[set] = Some(subject);
                Ok(subject)
            }
        }
    }

    /// Returns the subject of values that include an address.
    #[inline(never)]
    fn subject_with_address<'a>(
        &self,
        kind: &SubjectKind,
        ids: &[AttributeId],
        values: impl Iterator<Item = &'a str>,
    ) -> Subject {
        let values = ids.iter().zip(values).map(|(id, value)| {
            let is_address = Some(*id) == self.address;
            let owner = is_address.then(|| address::subject(value, self.ipv6_prefix));
            owner.flatten().map_or(Cow::Borrowed(value), Cow::Owned)
        });
        let values: SmallVec<[Cow<'_, str>; 4]> = values.collect();
        kind.subject(values.iter().map(Cow::as_ref))
    }
}
