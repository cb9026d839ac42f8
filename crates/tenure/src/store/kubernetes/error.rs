//! What the API server, or a proxy in front of it, says when it does not do what was requested.

use kube::client::AuthError;
use kube::core::Status;

use super::settings::KubernetesSettings;
use crate::error::Error;

/// The greatest part of a foreign text that is shown.
const MAX_SHOWN: usize = 300;

/// A request, for messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verb(pub(super) &'static str);

/// An answer that is not the requested object.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) http_status: u16,
    /// The Status object; `None` if the body is something else.
    pub(super) status: Option<Status>,
    pub(super) body: Vec<u8>,
}

impl Refusal {
    pub(super) fn new(http_status: u16, body: Vec<u8>) -> Self {
        let status = serde_json::from_slice::<Status>(&body).ok();
        let status = status.filter(|status| !status.message.is_empty() || status.code != 0);
        Refusal { http_status, status, body }
    }

    /// Whether the API server says that this object of the group does not exist, and not that it does not know the resource.
    pub(super) fn is_missing_lease(&self) -> bool {
        let details = self.status.as_ref().and_then(|status| status.details.as_ref());
        self.http_status == 404 && details.is_some_and(|details| details.kind == "leases")
    }

    pub(super) fn into_error(self, verb: Verb, settings: &KubernetesSettings) -> Error {
        let (server, namespace, Verb(verb)) = (settings.server(), &settings.namespace, verb);
        let http_status = self.http_status;
        let tried = format!("{verb} on leases in namespace '{namespace}' at {server}");
        let Some(status) = &self.status else {
            return match http_status {
                429 | 500.. => Error::unavailable(format!(
                    "{tried} failed with HTTP {http_status} ({}): the API server is overloaded or not ready",
                    shown(&self.body)
                )),
                _ => not_kubernetes(&tried, http_status, &self.body),
            };
        };
        let message = shown(status.message.as_bytes());
        match http_status {
            401 => Error::denied(format!(
                "{tried} was refused: the API server does not accept these credentials ({message}). Check the user of the \
                 kubeconfig, or the service account of the pod"
            )),
            403 => Error::denied(format!(
                "{tried} was refused ({message}). Bind a Role with apiGroups [coordination.k8s.io], resources [leases], \
                 verbs [get, list, watch, create, update] to this user: see deploy/kubernetes/rbac.yaml"
            )),
            404 => Error::denied(format!(
                "{tried} failed ({message}): create the namespace, or check that the server has coordination.k8s.io/v1"
            )),
            400 | 405 | 406 | 413 | 415 | 422 => Error::denied(format!(
                "{tried} was refused ({message}): an admission rule or the server does not accept the Lease"
            )),
            _ => Error::unavailable(format!("{tried} failed with HTTP {http_status} ({message})")),
        }
    }
}

/// The error for an answer that no API server gives.
pub(super) fn not_kubernetes(tried: &str, http_status: u16, body: &[u8]) -> Error {
    Error::unavailable(format!(
        "{tried} got an answer that is not of a Kubernetes API server (HTTP {http_status}: {}): is a proxy in between, or \
         the address wrong?",
        shown(body)
    ))
}

/// The error for a request that got no answer.
pub(super) fn not_sent(error: kube::Error, verb: Verb, settings: &KubernetesSettings) -> Error {
    let (server, Verb(verb)) = (settings.server(), verb);
    match error {
        kube::Error::Auth(error) => denied_login(&error),
        kube::Error::Service(error) if error.is::<AuthError>() => {
            error.downcast_ref().map_or_else(|| Error::denied("login failed"), denied_login)
        }
        kube::Error::RustlsTls(error) => {
            Error::invalid(format!("the certificates of the kubeconfig cannot be used: {error}"))
        }
        error @ (kube::Error::ProxyProtocolDisabled { .. }
        | kube::Error::ProxyProtocolUnsupported { .. }
        | kube::Error::BuildRequest(_)) => Error::invalid(error.to_string()),
        error => {
            // The last cause is the one that says it: connection refused, a certificate of another name.
            let mut cause: &dyn std::error::Error = &error;
            while let Some(source) = cause.source() {
                cause = source;
            }
            Error::unavailable(format!("{verb} of leases at {server} got no answer: {cause}"))
        }
    }
}

/// The output of an exec plugin may contain a token, so it is not shown.
fn denied_login(error: &AuthError) -> Error {
    let reason = match error {
        AuthError::AuthExecRun { status, .. } => format!("its exec plugin failed with {status}"),
        AuthError::AuthExecParse(_) | AuthError::ExecPluginFailed => {
            "its exec plugin returned no credentials".to_owned()
        }
        error => error.to_string(),
    };
    Error::denied(format!("the user of the kubeconfig cannot log in: {reason}"))
}

/// The beginning of a text, in one line.
fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(MAX_SHOWN)]);
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").escape_debug().to_string()
}
