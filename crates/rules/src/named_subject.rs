//! The one subject that an override or a block is for.
//!
//! An operator writes the subject as `attribute=value`. The value is hashed at once: an override is
//! stored, listed and logged with the hash only. The hash is that of a rule with `per: [attribute]`.
//! Networks are the exception. A hash of a network could not be compared with an address, so a network
//! is kept as it is.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ipnet::IpNet;
use tollgate_core::{Keyring, SubjectKind};

use crate::address::{self, NetworkMap};
use crate::attributes::Attributes;
use crate::document::{BadValue, Short};
use crate::validate::is_attribute_name;

/// Longer values are rejected.
const MAX_VALUE: usize = 4096;

/// One subject: an attribute, and the hash of its value or a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSubject {
    pub(crate) attribute: Arc<str>,
    pub(crate) owner: Owner,
}

/// The value of the attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The hash of the value, and the fingerprint of the keyring that made it.
    Hash { hash: u128, keyring: Arc<str> },
    /// All addresses of a network.
    Network(IpNet),
}

impl NamedSubject {
    /// Reads `attribute=value`. The attribute `ip` takes an address or a network.
    ///
    /// ```
    /// # use tollgate_core::Keyring;
    /// use tollgate_rules::NamedSubject;
    ///
    /// let keyring = Keyring::new(b"a secret of 16 bytes", "default");
    /// let shown = |text| NamedSubject::parse(text, &keyring).map(|it| it.to_string()).ok();
    /// assert_eq!(shown("ip=10.0.0.0/8").as_deref(), Some("ip:10.0.0.0/8"));
    /// assert!(shown("api_key=k1").is_some_and(|shown| !shown.contains("k1")));
    /// assert_eq!(shown("api_key"), None);
    /// ```
    ///
    /// # Errors
    /// If the text is not an attribute with a value.
    pub fn parse(text: &str, keyring: &Keyring) -> Result<NamedSubject, BadValue> {
        let help = "write an attribute and its value, such as api_key=k1 or ip=10.0.0.0/8";
        let Some((attribute, value)) = text.split_once('=') else {
            // The text may be a secret: it is not quoted.
            return Err(BadValue::new("the subject has no `=`", help));
        };
        if !is_attribute_name(attribute) {
            let message = format!("`{}` is not the name of an attribute", Short(attribute));
            return Err(BadValue::new(message, help));
        }
        if value.is_empty() || value.len() > MAX_VALUE {
            let message = "the value of the subject is empty or too long";
            return Err(BadValue::new(message, help));
        }
        let network = match attribute {
            address::ATTRIBUTE => address::matched_network(value)?,
            _ => None,
        };
        let owner = match network {
            Some(network) => Owner::Network(network),
            None => Owner::Hash {
                hash: keyring.kind([attribute]).subject([value]).bits(),
                keyring: keyring.fingerprint().into(),
            },
        };
        Ok(NamedSubject {
            attribute: attribute.into(),
            owner,
        })
    }

    /// The attribute.
    #[must_use]
    pub fn attribute(&self) -> &str {
        &self.attribute
    }

    /// The hash of the value in hexadecimal digits, or the network.
    #[must_use]
    pub fn value(&self) -> String {
        match &self.owner {
            Owner::Hash { hash, .. } => format!("{hash:032x}"),
            Owner::Network(network) => network.to_string(),
        }
    }

    /// The hash of the value; `None` for a network.
    #[must_use]
    pub fn hash(&self) -> Option<u128> {
        match &self.owner {
            Owner::Hash { hash, .. } => Some(*hash),
            Owner::Network(_) => None,
        }
    }

    /// Returns why no request can belong to this subject; `None` if requests can.
    #[must_use]
    pub fn stale(&self, keyring: &Keyring) -> Option<String> {
        match &self.owner {
            Owner::Hash { keyring: by, .. } if **by != *keyring.fingerprint() => {
                Some("the subject was hashed with another hash_secret: set it again".to_owned())
            }
            _ => None,
        }
    }
}

impl fmt::Display for NamedSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.attribute, self.value())
    }
}

/// Values by subject. A lookup costs one hash for each attribute in use, and one for each length of a
/// prefix in use. The number of subjects does not matter.
#[derive(Debug)]
pub(crate) struct SubjectMap<T> {
    hashed: Vec<Hashed<T>>,
    networks: NetworkMap<Vec<T>>,
}

/// The subjects of one attribute.
#[derive(Debug)]
struct Hashed<T> {
    attribute: Arc<str>,
    kind: SubjectKind,
    values: HashMap<u128, Vec<T>, RandomState>,
}

impl<T> Default for SubjectMap<T> {
    fn default() -> SubjectMap<T> {
        SubjectMap {
            hashed: Vec::new(),
            networks: NetworkMap::default(),
        }
    }
}

impl<T> SubjectMap<T> {
    /// Collects values. Leaves out subjects that another keyring has hashed.
    pub(crate) fn new<'s>(
        values: impl Iterator<Item = (&'s NamedSubject, T)>,
        keyring: &Keyring,
    ) -> SubjectMap<T> {
        let fingerprint = keyring.fingerprint();
        let mut map = SubjectMap::default();
        for (subject, value) in values {
            match &subject.owner {
                Owner::Network(network) => map.networks.entry(*network).push(value),
                Owner::Hash { hash, keyring: by } if **by == *fingerprint => {
                    let known = |it: &Hashed<T>| it.attribute == subject.attribute;
                    let place = map.hashed.iter().position(known).unwrap_or_else(|| {
                        map.hashed.push(Hashed {
                            attribute: Arc::clone(&subject.attribute),
                            kind: keyring.kind([&*subject.attribute]),
                            values: HashMap::default(),
                        });
                        map.hashed.len() - 1
                    });
                    map.hashed[place]
                        .values
                        .entry(*hash)
                        .or_default()
                        .push(value);
                }
                Owner::Hash { .. } => {}
            }
        }
        map
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.hashed.is_empty() && self.networks.is_empty()
    }

    /// Passes all values for a request with these attributes to `visit`.
    pub(crate) fn visit<'m>(&'m self, attributes: &Attributes<'_>, mut visit: impl FnMut(&'m T)) {
        for it in &self.hashed {
            if let Some(value) = attributes.get(&it.attribute) {
                let hash = it.kind.subject([value]).bits();
                it.values
                    .get(&hash)
                    .into_iter()
                    .flatten()
                    .for_each(&mut visit);
            }
        }
        if !self.networks.is_empty()
            && let Some(address) = attributes.get(address::ATTRIBUTE)
            && let Some(address) = address::parse_address(address)
        {
            self.networks.all(address).flatten().for_each(visit);
        }
    }

    /// Calls `visit` with each entry of the subject that is only `attribute` with this value. The value need not be
    /// text.
    pub(crate) fn visit_one<'m>(&'m self, attribute: &str, value: &[u8], visit: impl FnMut(&'m T)) {
        let known = self.hashed.iter().find(|it| *it.attribute == *attribute);
        let found = known.and_then(|it| it.values.get(&it.kind.subject_of(value).bits()));
        found.into_iter().flatten().for_each(visit);
    }
}
