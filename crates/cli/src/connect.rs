//! Connections to the doors of a running server: the address, the token and TLS.
//!
//! A token is sent in plain text to a loopback address only. Redirects are not followed, and proxies of the
//! environment are not used, so a request goes to the given address or nowhere.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use ureq::http::{Response, StatusCode};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{ConnectionDetails, Connector, TcpConnector, Transport};
use ureq::{Agent, Body, RequestBuilder};

use crate::terminal::printable;
use crate::tls::{Tls, TlsConnector};

/// Why a call failed.
pub(crate) struct Failure {
    /// The error, ready to print.
    pub(crate) text: String,
    /// Whether the server rejected the call and would reject it again, such as one without the right token.
    pub(crate) is_lasting: bool,
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure {
            text,
            is_lasting: false,
        }
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.text
    }
}

/// How to connect to a door: the token to show, and the certificates to trust and to present.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectArgs {
    /// The token for the door, if it needs one; safer in the environment than on the command line
    #[arg(
        long,
        value_name = "TOKEN",
        env = "TOLLGATE_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,

    /// Trust the certificate authorities in this PEM file, and no others [default: those of the system]
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CA")]
    pub(crate) ca: Option<PathBuf>,

    /// The client certificate (PEM), for a door that asks for one
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CERT", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// The private key of the client certificate (PEM)
    #[arg(long, value_name = "FILE", env = "TOLLGATE_KEY", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// The name in the server's certificate [default: the host of the address]
    #[arg(long, value_name = "NAME", env = "TOLLGATE_SERVER_NAME")]
    pub(crate) server_name: Option<String>,
}

/// The timeout of a call that a server answers quickly.
pub(crate) const SHORT: Duration = Duration::from_secs(10);

/// A method, with its query or its body.
pub(crate) enum Call<'c> {
    Get(&'c [(&'c str, &'c str)]),
    Post(&'c Value),
    /// A query whose secrets are in the body: proxies log addresses.
    Search(&'c [(&'c str, &'c str)], &'c Value),
    Delete(&'c [(&'c str, &'c str)]),
}

/// A door of a running server.
pub(crate) struct Door<'c> {
    agent: Agent,
    /// The scheme and the authority.
    address: String,
    token: Option<&'c str>,
    tls: Option<Tls>,
    /// The remedy if nothing answers at the address.
    help: &'static str,
}

impl ConnectArgs {
    /// Returns the door at `address`, which may lack the scheme. Reads the TLS files if it needs TLS.
    pub(crate) fn door(
        &self,
        address: &str,
        timeout: Duration,
        help: &'static str,
    ) -> Result<Door<'_>, String> {
        let address = self.with_scheme(address);
        let is_tls = address
            .get(..8)
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"));
        let tls = is_tls.then(|| Tls::new(self)).transpose()?;
        let token = self.token.as_deref().map(str::trim);
        let token = token.filter(|token| !token.is_empty());
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(SHORT))
            .timeout_global(Some(timeout))
            .build();
        let connector = ()
            .chain(NoPlainToken {
                has_token: token.is_some(),
            })
            .chain(TcpConnector::default())
            .chain(TlsConnector::new(tls.as_ref()));
        Ok(Door {
            agent: Agent::with_parts(config, connector, DefaultResolver::default()),
            address,
            token,
            tls,
            help,
        })
    }

    /// Adds the scheme to an address that has none: https if a flag is about TLS, http otherwise.
    fn with_scheme(&self, address: &str) -> String {
        let is_about_tls = self.ca.is_some() || self.cert.is_some() || self.server_name.is_some();
        let scheme = match (address.contains("://"), is_about_tls) {
            (true, _) => "",
            (false, true) => "https://",
            (false, false) => "http://",
        };
        format!("{scheme}{}", address.trim_end_matches('/'))
    }
}

impl Door<'_> {
    /// Sends a request. Returns the response if its status is 2xx, and an error otherwise. Errors are
    /// ready to print.
    pub(crate) fn call(&self, path: &str, call: &Call<'_>) -> Result<Response<Body>, Failure> {
        let response = self.send(path, call)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = self.json(path, response)?;
        Err(Failure {
            text: describe_error(status.as_u16(), &body),
            is_lasting: status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS,
        })
    }

    /// Sends a request, and returns the response whatever its status is.
    pub(crate) fn send(&self, path: &str, call: &Call<'_>) -> Result<Response<Body>, String> {
        let (url, agent) = (format!("{}{path}", self.address), &self.agent);
        let sent = match call {
            Call::Get(query) => self.request(agent.get(&url), query).call(),
            Call::Post(body) => self.request(agent.post(&url), &[]).send_json(body),
            Call::Search(query, body) => self.request(agent.post(&url), query).send_json(body),
            Call::Delete(query) => self.request(agent.delete(&url), query).call(),
        };
        sent.map_err(|error| self.failed(path, &error))
    }

    /// Reads the JSON in a response.
    pub(crate) fn json(&self, path: &str, mut response: Response<Body>) -> Result<Value, String> {
        let body = response.body_mut().read_json();
        body.map_err(|error| self.failed(path, &error))
    }

    /// Reads the text of a response.
    pub(crate) fn text(&self, path: &str, mut response: Response<Body>) -> Result<String, String> {
        let body = response.body_mut().read_to_string();
        body.map_err(|error| self.failed(path, &error))
    }

    /// Adds the query and the token.
    fn request<B>(&self, request: RequestBuilder<B>, query: &[(&str, &str)]) -> RequestBuilder<B> {
        let request = request.query_pairs(query.iter().copied());
        match self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    /// Describes why a request has no answer, ready to print.
    fn failed(&self, path: &str, error: &ureq::Error) -> String {
        let url = format!("{}{path}", self.address);
        if let ureq::Error::Other(other) = error
            && other.is::<PlainToken>()
        {
            return format!(
                "error: {other}: {url}\nhelp: write https:// in the address, with --ca if the certificate is not \
                 of a public authority; or connect by a tunnel, such as `ssh -L`, to a loopback address"
            );
        }
        let (what, help) = match &self.tls {
            Some(tls) => tls.explain(error),
            None => (None, is_no_http(error).then_some(TLS_HELP)),
        };
        let what = what.map_or_else(|| error.to_string(), |what| format!("{what} ({error})"));
        let help = help.unwrap_or(self.help);
        format!("error: request to {url} failed: {what}\nhelp: {help}")
    }
}

const TLS_HELP: &str = "if the door uses TLS, write https:// in the address";

/// Returns whether the answer is not HTTP, as that of a door with TLS.
fn is_no_http(error: &ureq::Error) -> bool {
    use std::io::ErrorKind::{ConnectionReset, InvalidData, UnexpectedEof};
    match error {
        ureq::Error::Protocol(_) | ureq::Error::BodyStalled => true,
        ureq::Error::Io(error) => {
            matches!(error.kind(), ConnectionReset | InvalidData | UnexpectedEof)
        }
        _ => false,
    }
}

/// Ends a connection without TLS to another machine, before a token is sent there. The addresses are
/// those that the name was resolved to, so a name is judged by the address that is used.
#[derive(Debug)]
struct NoPlainToken {
    has_token: bool,
}

impl<In: Transport> Connector<In> for NoPlainToken {
    type Out = In;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<In>, ureq::Error> {
        let mut addresses = details.addrs.iter();
        let is_elsewhere = addresses.any(|it| !it.ip().to_canonical().is_loopback());
        match self.has_token && !details.needs_tls() && is_elsewhere {
            true => Err(ureq::Error::Other(Box::new(PlainToken))),
            false => Ok(chained),
        }
    }
}

/// A token would be sent in plain text.
#[derive(Debug)]
struct PlainToken;

impl fmt::Display for PlainToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the token would be sent in plain text to another machine")
    }
}

impl std::error::Error for PlainToken {}

/// Returns the elements of the list `name` in an answer; empty if there is no such list.
pub(crate) fn list<'v>(answer: &'v Value, name: &str) -> &'v [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}

/// Writes the error in an answer, ready to print.
pub(crate) fn describe_error(status: u16, body: &Value) -> String {
    let problems = list(body, "problems").iter().filter_map(|problem| {
        let mut text = format!("error: {}", printable(problem["message"].as_str()?));
        if let Some(help) = problem["help"].as_str() {
            text += &format!("\nhelp: {}", printable(help));
        }
        Some(text)
    });
    let problems: Vec<String> = problems.collect();
    let mut text = match (problems.as_slice(), body["message"].as_str()) {
        ([], Some(message)) => format!("error: {}", printable(message)),
        ([], None) => format!("error: {}", printable(&body.to_string())),
        (problems, _) => problems.join("\n"),
    };
    if status == 401 {
        text += "\nhelp: set TOLLGATE_TOKEN to a token that this door knows";
    }
    text
}
