//! Commands that were read but cannot be carried out. The connection stays open.

use tollgate::ParamError;
use tollgate_config::TokenScope;
use tollgate_core::MAX_AMOUNT;

use super::bounds::{MAX_KEY, MAX_NAME};
use super::reply::Reply;
use crate::door_metrics::Fault;
use crate::question::BadQuestion;

/// Why a command is not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CommandError {
    #[error("unknown command '{0}'")]
    Unknown(String),
    #[error("wrong number of arguments for '{0}' command")]
    Arguments(&'static str),
    #[error("unknown subcommand '{1}' of '{0}'")]
    Subcommand(&'static str, String),
    #[error("syntax error")]
    Syntax,
    #[error("Authentication required.")]
    NoLogin,
    #[error("this token lacks the `{}` scope", .0.name())]
    NotPermitted(TokenScope),
    #[error(
        "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
         AUTH <user> <pass> option can be used to authenticate the client and select the RESP \
         protocol version at the same time"
    )]
    NoLoginHello,
    #[error("invalid username-password pair or user is disabled.")]
    WrongPassword,
    #[error(
        "AUTH <password> called without any password configured for the default user. Are you \
         sure your configuration is correct?"
    )]
    NoPassword,
    #[error("unsupported protocol version")]
    NoProtocol,
    #[error("Protocol version is not an integer or out of range")]
    ProtocolNumber,
    #[error("DB index is out of range: only 0 exists")]
    Database,
    #[error(
        "Client names cannot contain spaces, newlines or special characters, and have at most \
         {MAX_NAME} bytes"
    )]
    ClientName,
    #[error("{0} is not a whole number: '{1}'")]
    NotNumber(&'static str, String),
    #[error("{0} must not be negative")]
    Negative(&'static str),
    #[error("{0} must be above 0: a rate of zero is not supported")]
    ZeroRate(&'static str),
    #[error("{0} is above the largest amount, {MAX_AMOUNT}")]
    TooLarge(&'static str),
    #[error("the key is longer than {MAX_KEY} bytes")]
    LongKey,
    #[error("these numbers do not make a limit: {0}")]
    Limit(ParamError),
    #[error("attributes come in pairs of a name and a value")]
    OddAttributes,
    #[error("the value of attribute {0} is not UTF-8 text")]
    NotText(String),
    #[error("{0} is given twice")]
    OptionTwice(&'static str),
    #[error("COST and UPTO cannot be used together")]
    CostAndUpTo,
    #[error(transparent)]
    Question(#[from] BadQuestion),
    #[error("{0} is not UTF-8 text")]
    OptionNotText(&'static str),
    #[error("the store does not answer")]
    Store,
    #[error(
        "too many wrong passwords came from this address: this one was not compared; try again later"
    )]
    TooManyWrong,
}

impl CommandError {
    /// Returns the first word of the error, for programs.
    fn code(&self) -> &'static str {
        match self {
            CommandError::NoLogin | CommandError::NoLoginHello => "NOAUTH",
            CommandError::NotPermitted(_) => "NOPERM",
            CommandError::WrongPassword => "WRONGPASS",
            CommandError::NoProtocol => "NOPROTO",
            CommandError::Store | CommandError::TooManyWrong => "TRYAGAIN",
            _ => "ERR",
        }
    }

    /// Returns why the command is bad; `None` if the command is not at fault.
    pub(super) fn fault(&self) -> Option<Fault> {
        match self {
            CommandError::Unknown(_) | CommandError::Subcommand(..) => Some(Fault::Unknown),
            CommandError::NoLogin
            | CommandError::NoLoginHello
            | CommandError::WrongPassword
            | CommandError::NoPassword
            | CommandError::TooManyWrong
            | CommandError::NotPermitted(_) => Some(Fault::Token),
            CommandError::LongKey => Some(Fault::TooLarge),
            CommandError::Store => None,
            _ => Some(Fault::Question),
        }
    }

    pub(super) fn write(&self, reply: &mut Reply<'_>) {
        reply.error(self.code(), &self.to_string());
    }
}

/// Returns the beginning of the bytes that a client sent, safe to show in an error.
pub(super) fn shown(bytes: &[u8]) -> String {
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(64)]);
    start.replace(char::is_control, "?")
}
