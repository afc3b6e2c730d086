//! Where profiles go: the address of `--otlp`.

use std::ffi::OsStr;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command};
use ureq::http::Uri;

/// Where a collector takes profiles.
const PATH: &str = "/v1development/profiles";

/// Address of a collector. Shown, it has no path but the one that all have: others may be secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    url: String,
    shown: String,
    host: String,
}

/// Reads the word of an option; what is wrong with it is told without the word, which may have a secret in it.
#[derive(Clone)]
pub struct Word;

impl TypedValueParser for Word {
    type Value = Endpoint;

    fn parse_ref(
        &self,
        command: &Command,
        _: Option<&Arg>,
        word: &OsStr,
    ) -> Result<Endpoint, clap::Error> {
        let read = word.to_string_lossy().parse();
        read.map_err(|why: String| {
            clap::Error::raw(ErrorKind::ValueValidation, format!("--otlp: {why}\n"))
                .with_cmd(command)
        })
    }
}

impl Endpoint {
    /// With the path.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// On this host, so that no proxy lies between.
    pub fn is_here(&self) -> bool {
        let host = self.host.trim_matches(['[', ']']);
        let ip = host.parse::<IpAddr>();
        host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = "not an address such as http://127.0.0.1:4318".to_owned();
        let uri: Uri = text.parse().map_err(|e| format!("{wrong}: {e}"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err("https is not built in: send to a collector in reach of http, such as one on this host, which can send on by https".to_owned());
            }
            _ => return Err(format!("{wrong}: it does not begin with http://")),
        }
        let authority = uri.authority().map_or("", |a| a.as_str());
        if authority.contains('@') {
            return Err("names and passwords in addresses are not sent".to_owned());
        }
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or(wrong.clone())?.to_owned();
        let port = authority.get(host.len()..).unwrap_or_default();
        let port = port.strip_prefix(':').unwrap_or("80").parse::<u16>();
        if !port.is_ok_and(|port| port > 0) {
            return Err(format!("{wrong}: its port is no number from 1 to 65535"));
        }
        if uri.query().is_some() {
            return Err(format!("{wrong}: it has a query"));
        }
        let base = uri.path().trim_end_matches('/');
        let base = base.strip_suffix(PATH).unwrap_or(base);
        let own = if base.is_empty() { "" } else { "/…" };
        Ok(Self {
            url: format!("http://{authority}{base}{PATH}"),
            shown: format!("http://{authority}{own}{PATH}"),
            host,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let url = |text: &str| text.parse::<Endpoint>().unwrap().url;
        let wanted = "http://a:4318/v1development/profiles";
        for text in ["http://a:4318", "http://a:4318/", wanted] {
            assert_eq!(url(text), wanted);
        }
        assert_eq!(url("http://a/b/"), "http://a/b/v1development/profiles");
        let shown = |text: &str| text.parse::<Endpoint>().unwrap().to_string();
        assert_eq!(shown("http://a:4318/"), wanted);
        assert_eq!(shown("http://a/key/"), "http://a/…/v1development/profiles");
        let here = |text: &str| text.parse::<Endpoint>().unwrap().is_here();
        assert!(here("http://LOCALHOST:1"));
        assert!(here("http://127.0.0.1:1") && here("http://[::1]:1") && here("http://localhost"));
        assert!(!here("http://10.0.0.1:1") && !here("http://localhost.example"));
    }

    #[test]
    fn what_cannot_be_sent_to() {
        let said = |text: &str| text.parse::<Endpoint>().unwrap_err();
        assert!(said("https://a:4318").contains("https is not built in"));
        assert!(said("http://me:secret@a").contains("passwords"));
        for wrong in [
            "a:4318",
            "localhost",
            "http://",
            "ftp://a",
            "http://a?b=c",
            "http://a b",
            "http://a:65536",
            "http://a:",
            "http://[::1]:0",
        ] {
            assert!(said(wrong).contains("not an address"), "{wrong}");
        }
    }
}
