//! The names in the certificate of a client. TLS has verified the certificate before.

use rustls::pki_types::CertificateDer;

use super::der::{any_value, value, values};
use crate::http::bounds::MAX_VALUE;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
const OCTET_STRING: u8 = 0x04;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
/// The tags of the version and of the extensions.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// The tags of alternative names.
const EMAIL: u8 = 0x81;
const DNS_NAME: u8 = 0x82;
const URI: u8 = 0x86;

const COMMON_NAME_ID: &[u8] = &[0x55, 0x04, 0x03];
const ALTERNATIVE_NAMES_ID: &[u8] = &[0x55, 0x1d, 0x11];

/// The names in a client's certificate: the first of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    pub(crate) common_name: Option<Box<str>>,
    pub(crate) dns_name: Option<Box<str>>,
    pub(crate) uri: Option<Box<str>>,
    pub(crate) email: Option<Box<str>>,
}

impl ClientCertificate {
    /// Reads the names. A part that cannot be read gives no name.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> ClientCertificate {
        let mut names = ClientCertificate::default();
        names.read(certificate);
        names
    }

    fn read(&mut self, certificate: &[u8]) -> Option<()> {
        let (certificate, _) = value(certificate, SEQUENCE)?;
        let (mut fields, _) = value(certificate, SEQUENCE)?;
        if fields.first() == Some(&VERSION) {
            (_, fields) = any_value(fields)?;
        }
        // The serial number, the algorithm of the signature, the issuer, and the validity.
        for _ in 0..4 {
            (_, fields) = any_value(fields)?;
        }
        let (subject, rest) = value(fields, SEQUENCE)?;
        self.common_name = values(subject)
            .filter(|(tag, _)| *tag == SET)
            .find_map(|(_, set)| {
                let (attribute, _) = value(set, SEQUENCE)?;
                let (id, text) = value(attribute, OID)?;
                let (content, _) = any_value(text).filter(|_| id == COMMON_NAME_ID)?;
                let is_text = [UTF8_STRING, PRINTABLE_STRING, IA5_STRING].contains(text.first()?);
                is_text.then(|| name(content))?
            });
        let (_, extensions) = values(rest).find(|(tag, _)| *tag == EXTENSIONS)?;
        let (extensions, _) = value(extensions, SEQUENCE)?;
        let names = values(extensions).find_map(|(_, extension)| {
            let (id, rest) = value(extension, OID)?;
            let (_, content) = values(rest)
                .filter(|_| id == ALTERNATIVE_NAMES_ID)
                .find(|(tag, _)| *tag == OCTET_STRING)?;
            Some(value(content, SEQUENCE)?.0)
        })?;
        for (tag, content) in values(names) {
            let known = match tag {
                EMAIL => &mut self.email,
                DNS_NAME => &mut self.dns_name,
                URI => &mut self.uri,
                _ => continue,
            };
            if known.is_none() {
                *known = name(content);
            }
        }
        Some(())
    }
}

/// Returns a name that can be an attribute: text without control characters, within bounds.
fn name(content: &[u8]) -> Option<Box<str>> {
    let text = std::str::from_utf8(content).ok()?;
    let fits = !text.is_empty() && text.len() <= MAX_VALUE && !text.contains(char::is_control);
    fits.then(|| text.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate() -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "Acme");
        params
            .distinguished_name
            .push(DnType::CommonName, "billing");
        params.subject_alt_names = vec![
            SanType::IpAddress([192, 0, 2, 1].into()),
            SanType::DnsName("billing.internal".try_into().unwrap()),
            SanType::DnsName("other.internal".try_into().unwrap()),
            SanType::URI("spiffe://acme/billing".try_into().unwrap()),
            SanType::Rfc822Name("ops@example.com".try_into().unwrap()),
        ];
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn first_name_of_each_kind_is_read() {
        let names = ClientCertificate::of(&certificate());
        assert_eq!(names.common_name.as_deref(), Some("billing"));
        assert_eq!(names.dns_name.as_deref(), Some("billing.internal"));
        assert_eq!(names.uri.as_deref(), Some("spiffe://acme/billing"));
        assert_eq!(names.email.as_deref(), Some("ops@example.com"));
    }

    #[test]
    fn certificate_without_names_gives_none() {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let key = KeyPair::generate().unwrap();
        let bare = params.self_signed(&key).unwrap();
        let names = ClientCertificate::of(bare.der());
        assert_eq!(names, ClientCertificate::default());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(cut in 0..2000_usize, at in 0..2000_usize, to: u8) {
            let mut bytes = certificate().to_vec();
            bytes.truncate(cut);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = to;
            }
            let _ = ClientCertificate::of(&CertificateDer::from(bytes));
        }
    }
}
