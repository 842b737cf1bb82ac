//! The admin door of a running server, as commands ask it.

use std::time::Duration;

use serde_json::Value;

use crate::shown::shown;

/// Which server, and who asks.
#[derive(clap::Args)]
pub(crate) struct AdminArgs {
    /// The admin door of the server
    #[arg(
        long,
        value_name = "URL",
        env = "TOLLGATE_ADMIN_URL",
        default_value = "http://127.0.0.1:8082"
    )]
    admin: String,

    /// The token to show there, if it wants one; better in the environment than on the command line
    #[arg(
        long,
        value_name = "TOKEN",
        env = "TOLLGATE_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,
}

/// What is asked of the door.
pub(crate) enum Question<'q> {
    Get,
    Post(&'q Value),
    /// With these as the query.
    Delete(&'q [(&'q str, &'q str)]),
}

impl AdminArgs {
    /// What the door answers at `path`; what it complains about is an error, ready to print.
    pub(crate) fn ask(&self, path: &str, question: &Question<'_>) -> Result<Value, String> {
        let scheme = if self.admin.contains("://") {
            ""
        } else {
            "http://"
        };
        let url = format!("{scheme}{}{path}", self.admin.trim_end_matches('/'));
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(10)))
            .build()
            .into();
        let token = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let unreachable = |error: ureq::Error| {
            format!(
                "error: cannot ask {url}: {error}\nhelp: name the admin door of the server with --admin; \
                 `server.admin` or `serve --admin` opens it"
            )
        };
        let answered = match question {
            Question::Get => with(agent.get(&url), token).call(),
            Question::Post(body) => with(agent.post(&url), token).send_json(body),
            Question::Delete(query) => {
                let request = with(agent.delete(&url), token);
                request.query_pairs(query.iter().copied()).call()
            }
        };
        let mut response = answered.map_err(unreachable)?;
        let status = response.status();
        let answer: Value = response.body_mut().read_json().map_err(unreachable)?;
        if status.is_success() {
            return Ok(answer);
        }
        let message = answer["message"].as_str();
        let message = message.map_or_else(|| answer.to_string(), str::to_owned);
        let problems = answer["problems"].as_array();
        let problems = problems.into_iter().flatten().filter_map(|problem| {
            let mut text = format!("error: {}", shown(problem["message"].as_str()?));
            if let Some(help) = problem["help"].as_str() {
                text += &format!("\nhelp: {}", shown(help));
            }
            Some(text)
        });
        let problems: Vec<String> = problems.collect();
        let mut text = match problems.as_slice() {
            [] => format!("error: {}", shown(&message)),
            problems => problems.join("\n"),
        };
        if status.as_u16() == 401 {
            text += "\nhelp: put the token into TOLLGATE_TOKEN";
        }
        Err(text)
    }
}

fn with<B>(request: ureq::RequestBuilder<B>, token: Option<String>) -> ureq::RequestBuilder<B> {
    match token {
        Some(token) => request.header("authorization", token),
        None => request,
    }
}
