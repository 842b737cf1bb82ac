//! The units of time in Envoy's requests and responses. A month is 30 days and a year 365 days, as in
//! Envoy's reference service.

use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::grpc::proto::envoy::r#type::v3::RateLimitUnit;
use tollgate::Span;

const DAY: u64 = 24 * 60 * 60;
const WEEK: Span = Span::from_secs(7 * DAY);
const MONTH: Span = Span::from_secs(30 * DAY);
const YEAR: Span = Span::from_secs(365 * DAY);

/// Returns the length of a unit in a request, or `None` if the unit is unknown.
pub(super) fn period(unit: i32) -> Option<Span> {
    match RateLimitUnit::try_from(unit).ok()? {
        RateLimitUnit::Second => Some(Span::SECOND),
        RateLimitUnit::Minute => Some(Span::MINUTE),
        RateLimitUnit::Hour => Some(Span::HOUR),
        RateLimitUnit::Day => Some(Span::DAY),
        RateLimitUnit::Month => Some(MONTH),
        RateLimitUnit::Year => Some(YEAR),
        RateLimitUnit::Unknown => None,
    }
}

/// Returns the unit that is exactly as long as `window`, or `Unknown`.
pub(crate) fn unit(window: Span) -> Unit {
    match window {
        Span::SECOND => Unit::Second,
        Span::MINUTE => Unit::Minute,
        Span::HOUR => Unit::Hour,
        Span::DAY => Unit::Day,
        WEEK => Unit::Week,
        MONTH => Unit::Month,
        YEAR => Unit::Year,
        _ => Unit::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_of_a_request_is_the_unit_of_its_response() {
        for number in -1..9 {
            if let Some(period) = period(number) {
                assert_eq!(unit(period) as i32, number, "{period}");
            }
        }
        assert_eq!(period(0), None);
        assert_eq!(unit(WEEK), Unit::Week);
        assert_eq!(unit(Span::from_secs(61)), Unit::Unknown);
        assert_eq!(unit(Span::ZERO), Unit::Unknown);
    }
}
