//! Checks the logins of a Redis and of its Sentinels.

use super::raw::RawRedis;
use super::validate::Reader;
use super::{Login, Password, RedisUrl, USER_ALONE, USER_ALONE_HELP};
use crate::secrets::Secret;
use tollgate_rules::document::{At, Field, Problems, Text};

/// The three fields of a login.
pub(super) struct LoginFields {
    /// User, password, file of the password.
    names: [&'static str; 3],
    of: fn(&RawRedis) -> [&Field<Text>; 3],
    /// Whether URLs may contain the login too.
    of_urls: bool,
    alone_help: &'static str,
}

pub(super) const LOGIN: LoginFields = LoginFields {
    names: ["username", "password", "password_file"],
    of: |raw| [&raw.username, &raw.password, &raw.password_file],
    of_urls: true,
    alone_help: USER_ALONE_HELP,
};

pub(super) const SENTINEL_LOGIN: LoginFields = LoginFields {
    names: [
        "sentinel_username",
        "sentinel_password",
        "sentinel_password_file",
    ],
    of: |raw| {
        [
            &raw.sentinel_username,
            &raw.sentinel_password,
            &raw.sentinel_password_file,
        ]
    },
    of_urls: false,
    alone_help: "add `sentinel_password` or `sentinel_password_file`",
};

impl Reader<'_> {
    pub(super) fn login(&self, fields: &LoginFields, problems: &mut Problems<'_>) -> Login {
        let [username, password, file] = fields.names;
        let [user_field, password_field, file_field] = (fields.of)(self.raw);
        if let (Some(_), Some(key)) = (password_field.key(), file_field.key()) {
            problems.report(
                key,
                format!("`{password}` and `{file}` cannot be used together"),
                "keep one of the two",
            );
        }
        let given = self.text(password, password_field, problems);
        let path = self.path(file, file_field, problems);
        Login {
            username: self.text(username, user_field, problems),
            password: given
                .map(|password| Password::Text(Secret::new(password)))
                .or(path.map(Password::File)),
        }
    }

    /// Reports a user without a password.
    pub(super) fn check_users(&self, urls: &[(&At<Text>, RedisUrl)], problems: &mut Problems<'_>) {
        for fields in [&LOGIN, &SENTINEL_LOGIN] {
            let [username, password, file] = (fields.of)(self.raw);
            let from_urls = fields.of_urls && urls.iter().all(|(_, url)| url.password.is_some());
            if from_urls || !password.is_absent() || !file.is_absent() {
                continue;
            }
            let in_url = urls
                .iter()
                .find(|(_, url)| fields.of_urls && url.username.is_some() && url.password.is_none())
                .map(|(at, _)| at.place);
            if let Some(place) = username.get().map(|at| at.place).or(in_url) {
                problems.report(place, USER_ALONE, fields.alone_help);
            }
        }
    }
}
