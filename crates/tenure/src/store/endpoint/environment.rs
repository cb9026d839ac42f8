//! PURE: completes an endpoint from the variables that the service's own client reads.
//!
//! A user who has set `ETCDCTL_ENDPOINTS` or `PGHOST` need not repeat it in the URL. The table of a store lists such variables
//! with what each one sets:
//!
//! | sets | value of the variable |
//! |---|---|
//! | `hosts` | `HOST[:PORT]`, several separated by commas if the store allows them; `http://` and `https://` set the option `tls` |
//! | `port` | the port of hosts without one |
//! | `user`, `password` | as they are, not percent-encoded |
//! | `login` | `USER:PASSWORD` or `USER` |
//! | `path` | what follows the `/` after the hosts |
//! | an option | the value of that option |
//!
//! The URL always wins, and so does the variable that is listed first. A password goes with its user: the password of a `login`
//! is not used for a user of the URL. An empty variable counts as not set, as most clients do it.

use std::ffi::OsString;

use super::credentials::Secret;
use super::server::{UrlForm, UrlParts, parse_hosts, parse_port};
use crate::error::{Error, Result};

/// Sets what the URL leaves out. `variable` returns the value of a variable.
pub(super) fn fill_in(
    parts: &mut UrlParts<'_>,
    form: &UrlForm,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<()> {
    let url_has_password = parts.password.is_some() || parts.options.is_given("password_file");
    let mut password_variable = None;
    let mut port = None;
    for &(name, sets) in form.environment {
        let Some(value) = read(name, variable)? else { continue };
        match sets {
            "hosts" if parts.hosts.is_empty() => set_hosts(parts, form, name, &value)?,
            "hosts" => {}
            "port" if port.is_some() => {}
            "port" => port = Some(parse_port(&value).map_err(|reason| unusable(name, reason))?),
            "user" => parts.user = parts.user.take().or(Some(value)),
            "path" if parts.path.is_empty() => parts.path = value,
            "path" => {}
            "password" | "password_file" if url_has_password => {}
            "password" if parts.password.is_none() => {
                parts.password = Some(Secret::new(&value));
                password_variable = Some(name);
            }
            "password" => {}
            "login" if url_has_password || parts.user.is_some() => {}
            "login" => {
                let (user, password) = value.split_once(':').unzip();
                parts.user = Some(user.unwrap_or(&value).to_owned());
                if let (Some(password), None) = (password, &parts.password) {
                    parts.password = Some(Secret::new(password));
                    password_variable = Some(name);
                }
            }
            option => parts.options.add_from_variable(option, value, name),
        }
    }
    parts.default_port = port.unwrap_or(parts.default_port);
    match (password_variable, parts.options.variable("password_file")) {
        (Some(password), Some(file)) => Err(Error::invalid(format!(
            "the variables {password} and {file} both give a password: unset one of them"
        ))),
        _ => Ok(()),
    }
}

fn read(name: &str, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Option<String>> {
    let value = variable(name).filter(|value| !value.is_empty());
    value.map(OsString::into_string).transpose().map_err(|_| unusable(name, "it is not UTF-8"))
}

fn set_hosts(
    parts: &mut UrlParts<'_>,
    form: &UrlForm,
    name: &'static str,
    value: &str,
) -> Result<()> {
    let (mut hosts, mut with_tls) = (Vec::new(), Vec::new());
    for address in value.split(',') {
        let (tls, host) = match address.trim().split_once("://") {
            Some(("https", host)) => (Some(true), host),
            Some(("http", host)) => (Some(false), host),
            _ => (None, address.trim()),
        };
        hosts.push(host.trim_end_matches('/'));
        with_tls.extend(tls);
    }
    parts.hosts = parse_hosts(&hosts.join(","), form.several_hosts)
        .map_err(|reason| unusable(name, reason))?;
    let Some(&tls) = with_tls.first() else { return Ok(()) };
    // A host without a scheme must not get plaintext or TLS by the scheme of another one.
    if with_tls.len() != hosts.len() || with_tls.contains(&!tls) {
        return Err(unusable(name, "all its addresses begin with https://, or all with http://"));
    }
    if !form.options.contains(&"tls") {
        return Err(unusable(name, "it takes HOST:PORT, without http:// or https://"));
    }
    parts.options.add_from_variable("tls", u8::from(tls).to_string(), name);
    Ok(())
}

/// The error for a variable with an unusable value, which may contain a password.
fn unusable(name: &str, reason: &str) -> Error {
    Error::invalid(format!("the variable {name} cannot be used: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::super::{Endpoint, Host, Password, StoreUrl};
    use super::*;

    static ETCD: UrlForm = UrlForm {
        service: "etcd",
        form: "etcd://[USER[:PASSWORD]@]HOST[:PORT][,...]",
        default_port: 2379,
        several_hosts: true,
        options: &["tls", "ca", "cert", "key", "password_file"],
        environment: &[
            ("ETCDCTL_ENDPOINTS", "hosts"),
            ("ETCDCTL_USER", "login"),
            ("ETCDCTL_PASSWORD", "password"),
            ("ETCDCTL_CACERT", "ca"),
            ("ETCDCTL_CERT", "cert"),
            ("ETCDCTL_KEY", "key"),
        ],
    };

    static CONSUL: UrlForm = UrlForm {
        service: "Consul",
        form: "consul://[:TOKEN@]HOST[:PORT]",
        default_port: 8500,
        several_hosts: false,
        options: &["tls", "ca", "password_file"],
        environment: &[
            ("CONSUL_HTTP_ADDR", "hosts"),
            ("CONSUL_HTTP_TOKEN", "password"),
            ("CONSUL_HTTP_TOKEN_FILE", "password_file"),
            ("CONSUL_HTTP_SSL", "tls"),
            ("CONSUL_CACERT", "ca"),
        ],
    };

    static POSTGRES: UrlForm = UrlForm {
        service: "PostgreSQL",
        form: "postgres://[USER[:PASSWORD]@]HOST[:PORT][,...][/DATABASE]",
        default_port: 5432,
        several_hosts: true,
        options: &["sslmode", "password_file"],
        environment: &[
            ("PGHOST", "hosts"),
            ("PGPORT", "port"),
            ("PGUSER", "user"),
            ("PGPASSWORD", "password"),
            ("PGDATABASE", "path"),
            ("PGSSLMODE", "sslmode"),
        ],
    };

    fn parse<'a>(
        form: &'static UrlForm,
        url: &'a str,
        environment: &[(&str, &str)],
    ) -> Result<Endpoint<'a>> {
        let url = StoreUrl::parse(url).unwrap();
        Endpoint::parse(&url, form, &|name| {
            environment.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into())
        })
    }

    /// The parts of an endpoint as one line: hosts, user, password, path, and two options.
    fn summary(endpoint: &Endpoint<'_>, options: [&str; 2]) -> String {
        let hosts: Vec<String> = endpoint.hosts.iter().map(Host::to_string).collect();
        let password = match &endpoint.password {
            Some(Password::Given(secret)) => secret.expose(),
            Some(Password::File(path)) => path.to_str().unwrap(),
            None => "-",
        };
        let user = endpoint.user.as_deref().unwrap_or("-");
        let [first, second] = options.map(|key| endpoint.options.text(key).unwrap());
        let (first, second) = (first.unwrap_or("-".into()), second.unwrap_or("-".into()));
        format!("{} {user} {password} {:?} {first} {second}", hosts.join(","), endpoint.path)
    }

    #[test]
    fn variables_set_what_the_url_leaves_out() {
        let (etcd, consul, pg) = (&ETCD, &CONSUL, &POSTGRES);
        let two = ("ETCDCTL_ENDPOINTS", "https://a:1, https://b/");
        for (form, url, environment, expected) in [
            (etcd, "etcd://h", &[][..], "h:2379 - - \"\" - -"),
            (etcd, "etcd://", &[two], "a:1,b:2379 - - \"\" 1 -"),
            (etcd, "etcd://?tls=0", &[two], "a:1,b:2379 - - \"\" 0 -"),
            (etcd, "etcd://h", &[two], "h:2379 - - \"\" - -"),
            (etcd, "etcd://", &[("ETCDCTL_ENDPOINTS", "[::1]:7")], "[::1]:7 - - \"\" - -"),
            (etcd, "etcd://h", &[("ETCDCTL_ENDPOINTS", "")], "h:2379 - - \"\" - -"),
            (etcd, "etcd://h", &[("ETCDCTL_USER", "u:p:q%")], "h:2379 u p:q% \"\" - -"),
            (
                etcd,
                "etcd://h",
                &[("ETCDCTL_USER", "u"), ("ETCDCTL_PASSWORD", "p")],
                "h:2379 u p \"\" - -",
            ),
            (etcd, "etcd://me@h", &[("ETCDCTL_USER", "u:p")], "h:2379 me - \"\" - -"),
            (etcd, "etcd://me:x@h", &[("ETCDCTL_PASSWORD", "p")], "h:2379 me x \"\" - -"),
            (etcd, "etcd://h?ca=/a%20b", &[("ETCDCTL_CACERT", "/c")], "h:2379 - - \"\" - /a b"),
            (etcd, "etcd://h", &[("ETCDCTL_CACERT", "/a%20b")], "h:2379 - - \"\" - /a%20b"),
            (consul, "consul://", &[("CONSUL_HTTP_ADDR", "h")], "h:8500 - - \"\" - -"),
            (
                consul,
                "consul://h",
                &[("CONSUL_HTTP_TOKEN", "t"), ("CONSUL_HTTP_SSL", "true")],
                "h:8500 - t \"\" true -",
            ),
            (
                consul,
                "consul://h?password_file=/url",
                &[("CONSUL_HTTP_TOKEN", "t"), ("CONSUL_HTTP_TOKEN_FILE", "/env")],
                "h:8500 - /url \"\" - -",
            ),
            (consul, "consul://:t@h", &[("CONSUL_HTTP_TOKEN_FILE", "/env")], "h:8500 - t \"\" - -"),
            (
                pg,
                "postgres://",
                &[("PGHOST", "a,b:1"), ("PGPORT", "2"), ("PGUSER", "u"), ("PGDATABASE", "d/e")],
                "a:2,b:1 u - \"d/e\" - -",
            ),
            (
                pg,
                "postgres://u@h/d",
                &[("PGUSER", "x"), ("PGPASSWORD", "p"), ("PGDATABASE", "e"), ("PGPORT", "2")],
                "h:2 u p \"d\" - -",
            ),
        ] {
            let endpoint = parse(form, url, environment).unwrap();
            let options = if form.options.contains(&"ca") { ["tls", "ca"] } else { ["sslmode"; 2] };
            assert_eq!(summary(&endpoint, options), expected, "{url} {environment:?}");
        }
    }

    #[test]
    fn unusable_variables_are_named_and_not_repeated() {
        for (form, environment, says) in [
            (&ETCD, &[("ETCDCTL_ENDPOINTS", "u:secret@h")][..], "the variable ETCDCTL_ENDPOINTS"),
            (&ETCD, &[("ETCDCTL_ENDPOINTS", "https://a,http://b")], "or all with http://"),
            (&ETCD, &[("ETCDCTL_ENDPOINTS", "https://a,b")], "or all with http://"),
            (&CONSUL, &[("CONSUL_HTTP_ADDR", "a,b")], "the host is missing or is not"),
            (&CONSUL, &[("CONSUL_HTTP_ADDR", "unix:///secret")], "the port is not a number"),
            (&POSTGRES, &[("PGHOST", "https://h")], "without http:// or https://"),
            (&POSTGRES, &[("PGPORT", "secret")], "the variable PGPORT cannot be used: the port"),
            (
                &CONSUL,
                &[("CONSUL_HTTP_TOKEN", "secret"), ("CONSUL_HTTP_TOKEN_FILE", "/x")],
                "the variables CONSUL_HTTP_TOKEN and CONSUL_HTTP_TOKEN_FILE both give a password",
            ),
        ] {
            let error = parse(form, "x://", environment).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("secret"), "{environment:?}: {error}");
        }
        let not_utf8 = |_: &str| Some(std::os::unix::ffi::OsStringExt::from_vec(vec![0xff]));
        let url = StoreUrl::parse("etcd://h").unwrap();
        let error = Endpoint::parse(&url, &ETCD, &not_utf8).unwrap_err().to_string();
        assert_eq!(error, "the variable ETCDCTL_ENDPOINTS cannot be used: it is not UTF-8");
    }

    #[test]
    fn values_of_variables_are_checked_like_options() {
        let endpoint = parse(&CONSUL, "consul://h", &[("CONSUL_HTTP_SSL", "true")]).unwrap();
        assert_eq!(endpoint.options.flag("tls"), Ok(Some(true)));
        let endpoint = parse(&CONSUL, "consul://h", &[("CONSUL_HTTP_SSL", "yes")]).unwrap();
        let error = endpoint.options.flag("tls").unwrap_err();
        assert_eq!(error.to_string(), "'CONSUL_HTTP_SSL' is 0 or 1, not 'yes'");
    }

    #[test]
    fn the_shown_url_has_the_hosts_of_a_variable_and_no_secret() {
        let environment = [("ETCDCTL_ENDPOINTS", "a,b:1"), ("ETCDCTL_USER", "u:geheim")];
        let endpoint = parse(&ETCD, "etcd://?ca=/c", &environment).unwrap();
        assert_eq!(endpoint.url, "etcd://a:2379,b:1?ca=/c");
        assert!(!format!("{endpoint:?}").contains("geheim"));
    }
}
