//! Why a request is bad: the client, its proxy or its network has to change something.

use tonic::Code;

/// Why a request is bad. The value is the place of its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The bytes are not a request of the protocol.
    Protocol,
    /// The body is not JSON, or not the message that the call takes.
    Body,
    /// A value is missing, wrong or out of bounds.
    Question,
    /// The request is larger than its bound.
    TooLarge,
    /// The request did not arrive in time.
    TooSlow,
    /// The body ended early.
    CutShort,
    /// There is no such path, method, call or command.
    Unknown,
    /// A header is missing or wrong.
    Header,
    /// The door does not know the `Host`.
    Host,
    /// The request comes from a foreign web page.
    Origin,
    /// `/auth` was asked by a client that is not a trusted proxy.
    UntrustedProxy,
    /// The token or the password is missing, wrong, or lacks the role.
    Token,
    /// The connection, or all connections of the door, hold too many unfinished requests and unread answers.
    NoRoom,
}

impl Fault {
    /// All faults, in the order of their counts.
    pub(crate) const ALL: [Fault; 13] = [
        Fault::Protocol,
        Fault::Body,
        Fault::Question,
        Fault::TooLarge,
        Fault::TooSlow,
        Fault::CutShort,
        Fault::Unknown,
        Fault::Header,
        Fault::Host,
        Fault::Origin,
        Fault::UntrustedProxy,
        Fault::Token,
        Fault::NoRoom,
    ];

    /// Returns the name in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Fault::Protocol => "protocol",
            Fault::Body => "body",
            Fault::Question => "question",
            Fault::TooLarge => "too_large",
            Fault::TooSlow => "too_slow",
            Fault::CutShort => "cut_short",
            Fault::Unknown => "unknown",
            Fault::Header => "header",
            Fault::Host => "host",
            Fault::Origin => "origin",
            Fault::UntrustedProxy => "untrusted_proxy",
            Fault::Token => "token",
            Fault::NoRoom => "no_room",
        }
    }

    /// Returns the fault of a gRPC call that ended with `code`. Lack of room shares its code with denials,
    /// so it is counted where it arises.
    pub(crate) fn of_code(code: Code) -> Option<Fault> {
        match code {
            Code::InvalidArgument => Some(Fault::Question),
            Code::DeadlineExceeded => Some(Fault::TooSlow),
            Code::OutOfRange => Some(Fault::TooLarge),
            Code::Unimplemented => Some(Fault::Unknown),
            Code::Unauthenticated | Code::PermissionDenied => Some(Fault::Token),
            // The message cannot be decoded.
            Code::Internal => Some(Fault::Body),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_at_its_place() {
        for (place, fault) in Fault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, place, "{}", fault.name());
        }
    }
}
