//! Where profiles go: the address of `--otlp`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ureq::http::Uri;

/// Where a collector takes profiles.
const PATH: &str = "/v1development/profiles";

/// Address of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    url: String,
    host: String,
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
        host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
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
        if uri.query().is_some() {
            return Err(format!("{wrong}: it has a query"));
        }
        let base = uri.path().trim_end_matches('/');
        let base = base.strip_suffix(PATH).unwrap_or(base);
        Ok(Self {
            url: format!("http://{authority}{base}{PATH}"),
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
        let here = |text: &str| text.parse::<Endpoint>().unwrap().is_here();
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
        ] {
            assert!(said(wrong).contains("not an address"), "{wrong}");
        }
    }
}
