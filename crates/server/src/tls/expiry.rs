//! When a certificate expires.
//!
//! Only the few values on the way to the end of the validity are read here. Whether the certificate is valid is checked elsewhere.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use rustls::pki_types::CertificateDer;

use super::der::{any_value, value};

const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// The tag of the version, which a certificate may lack.
const VERSION: u8 = 0xa0;

/// Returns when the first of these certificates expires, in seconds since the epoch. `None` if none of
/// them can be read.
pub(super) fn first_expiry(certs: &[CertificateDer<'_>]) -> Option<i64> {
    certs.iter().filter_map(|cert| expiry(cert)).min()
}

fn expiry(cert: &[u8]) -> Option<i64> {
    let (certificate, _) = value(cert, SEQUENCE)?;
    let (mut fields, _) = value(certificate, SEQUENCE)?;
    if fields.first() == Some(&VERSION) {
        (_, fields) = any_value(fields)?;
    }
    // The serial number, the algorithm of the signature, and the issuer.
    for _ in 0..3 {
        (_, fields) = any_value(fields)?;
    }
    let (validity, _) = value(fields, SEQUENCE)?;
    let (_, not_after) = any_value(validity)?;
    let (time, _) = any_value(not_after)?;
    let digits = std::str::from_utf8(time).ok()?.strip_suffix('Z')?;
    let digits = match *not_after.first()? {
        // Two digits of the year: from 50 on, they belong to the last century (RFC 5280).
        UTC_TIME if digits.get(..2)? < "50" => format!("20{digits}"),
        UTC_TIME => format!("19{digits}"),
        GENERALIZED_TIME => digits.to_owned(),
        _ => return None,
    };
    let time = DateTime::strptime("%Y%m%d%H%M%S", digits).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(year: i32) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 3, 1);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn expiry_is_read_in_both_forms() {
        // From 2050 on, certificates have years of four digits.
        for (year, seconds) in [
            (2027, 1_803_859_200),
            (2049, 2_498_169_600),
            (2051, 2_561_241_600),
        ] {
            assert_eq!(expiry(&certificate(year)), Some(seconds), "{year}");
        }
    }

    #[test]
    fn first_certificate_to_expire_counts() {
        let chain = [certificate(2030), certificate(2028), certificate(2040)];
        assert_eq!(first_expiry(&chain), expiry(&chain[1]));
        assert_eq!(first_expiry(&[]), None);
        assert_eq!(
            first_expiry(&[CertificateDer::from(vec![0x30, 3, 1])]),
            None
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(cut in 0..2000_usize, at in 0..2000_usize, to: u8) {
            let mut bytes = certificate(2030).to_vec();
            bytes.truncate(cut);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = to;
            }
            let _ = expiry(&bytes);
        }
    }
}
