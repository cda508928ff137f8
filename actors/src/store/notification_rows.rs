//! Keys of the rows by which people are told what waits for them.

use covault_core::{ids::UserId, notification::NotificationSubject};

use crate::store::key::{Key, KeySpace};

/// [`KeySpace::NotificationTarget`].
pub fn notification_target(user: UserId) -> Key {
    Key::new(KeySpace::NotificationTarget, &[user.as_bytes()])
}

/// Whose row of [`KeySpace::NotificationTarget`] it is.
pub fn user_of_target(key: &Key) -> Option<UserId> {
    let id = key.bytes.as_slice().try_into().ok()?;
    Some(UserId::from_bytes(id))
}

/// [`KeySpace::Notification`].
pub fn notification(user: UserId, subject: &NotificationSubject) -> Key {
    Key::new(KeySpace::Notification, &[user.as_bytes(), &subject.key()])
}

/// Whose row of [`KeySpace::Notification`] it is, and of what.
pub fn split_notification(key: &Key) -> Option<(UserId, NotificationSubject)> {
    let (user, subject) = key.bytes.split_first_chunk::<16>()?;
    Some((UserId::from_bytes(*user), NotificationSubject::of(subject)?))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{
        deposit::Webhook,
        ids::{RequestId, VaultId},
        notification::{
            Notification, NotificationForm, NotificationKind, NotificationPace, NotificationSecret,
            NotificationTarget,
        },
    };

    use super::{super::rows::tests::check, *};

    #[test]
    fn notifications__should_load_for_ever() {
        let user = UserId::from_bytes([1; 16]);
        let target = NotificationTarget {
            form: NotificationForm::Webhook(NotificationSecret([17; 32])),
            url: Webhook("https://example.com/".into()),
            set_at_ms: 18,
            is_new: true,
            pace: NotificationPace {
                hour_began_ms: 19,
                sent: 20,
                failures: 21,
                next_ms: 22,
                problem: Some("it answered 500".into()),
            },
        };
        check("notification-target-v1", &target);
        let target = NotificationTarget {
            form: NotificationForm::Slack,
            is_new: false,
            pace: NotificationPace::default(),
            ..target
        };
        check("notification-target-v1-slack", &target);
        let target = NotificationTarget {
            form: NotificationForm::Mail,
            url: Webhook("mailto:ana@example.com".into()),
            ..target
        };
        check("notification-target-v1-mail", &target);
        let told = Notification {
            vault: Some(VaultId::from_bytes([2; 16])),
            told: vec![
                NotificationKind::Waits,
                NotificationKind::WaitsAgain,
                NotificationKind::Signed,
                NotificationKind::Failed,
            ],
            pending: Some((NotificationKind::NodeAway, 23)),
            is_over: true,
        };
        check("notification-v1", &told);
        let subject = NotificationSubject::Request(RequestId::from_bytes([24; 16]));
        let key = notification(user, &subject);
        assert_eq!(split_notification(&key), Some((user, subject)));
        assert_eq!(user_of_target(&notification_target(user)), Some(user));
    }
}
