//! Who is told, and where.

use covault_core::{
    fault::Fault,
    ids::UserId,
    notification::{NotificationForm, NotificationTarget},
    schema::admin,
    user::{User, UserRole},
};
use reqwest::Url;

use crate::{
    lists::READ_CHUNK,
    services::{Services, skip_unreadable},
    store::{KeySpace, Scan, notification_rows, rows},
};

/// Somebody who is told.
#[derive(Clone)]
pub struct NotificationListener {
    pub user: User,
    pub target: NotificationTarget,
}

impl NotificationListener {
    /// Whether requests are told.
    pub fn approves(&self) -> bool {
        self.user.role == UserRole::Approver
    }

    /// Whether nodes are told.
    pub fn operates(&self) -> bool {
        self.user.role == UserRole::Operator
    }
}

/// Everybody who is told, but those whose accounts were revoked.
///
/// # Errors
/// When the store cannot be read.
pub async fn all(services: &Services) -> Result<Vec<NotificationListener>, Fault> {
    let mut found = Vec::new();
    let mut next = Some(Scan::prefix(KeySpace::NotificationTarget, &[], READ_CHUNK));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        let mut targets = Vec::new();
        for (key, row) in &page {
            let Some(user) = notification_rows::user_of_target(key) else {
                continue;
            };
            let target = rows::decode::<NotificationTarget>(&row.value);
            let target = skip_unreadable(target, format_args!("where user {user} is told"))?;
            targets.extend(target.map(|target| (user, target)));
        }
        let keys: Vec<_> = targets.iter().map(|(id, _)| rows::user(*id)).collect();
        let users = services.load_all::<User>(&keys).await?;
        for ((id, target), user) in targets.into_iter().zip(users) {
            let user = skip_unreadable(user, format_args!("user {id}"))?.flatten();
            let user = user.filter(User::is_active);
            found.extend(user.map(|user| NotificationListener { user, target }));
        }
        next = scan.rest(&page);
    }
    Ok(found)
}

/// Where a person is told, as operators see it: without the URL, which may hold a key. `None`: nowhere.
///
/// # Errors
/// When the store cannot be read.
pub async fn view(
    services: &Services,
    user: UserId,
) -> Result<Option<admin::UserNotifications>, Fault> {
    let key = notification_rows::notification_target(user);
    let target = services.load::<NotificationTarget>(&key).await;
    let target = skip_unreadable(target, format_args!("where user {user} is told"))?.flatten();
    let Some((target, _)) = target else {
        return Ok(None);
    };
    let url = Url::parse(&target.url.0).ok();
    let host = url.as_ref().map(|url| match target.form {
        NotificationForm::Mail => url.path(),
        NotificationForm::Webhook(_) | NotificationForm::Slack => {
            url.host_str().unwrap_or_default()
        }
    });
    let host = host.unwrap_or_default();
    Ok(Some(admin::UserNotifications {
        form: target.form.name().to_owned(),
        host: host.to_owned(),
        set_at_ms: target.set_at_ms,
        problem: target.pace.problem,
    }))
}
