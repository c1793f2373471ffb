"""What looks like a credential is taken out of a text, and nothing else is."""

import base64
import itertools
import json
import random
import re
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from program import in_one_look

from sediment import UNCLOSED, asset, redact
from sediment_ext.credentials import credential_forms

# Secrets are made by their form when a test runs: a scanner finds none in this file.

SEED = 20_240_531
DRAWN = random.Random(SEED)
ALNUM = string.ascii_letters + string.digits
DASHES = "-" * 5
NAMES = ["Summer", "hunter", "kitten", "Blue-Lagoon", "tr0ub4dor", "Passw0rd", "liverpool"]


@pytest.fixture(autouse=True)
def the_same_draws() -> None:
    """What a test draws depends on no test before it."""
    DRAWN.seed(SEED)


def some(alphabet: str, length: int) -> str:
    return "".join(DRAWN.choices(alphabet, k=length))


def hexadecimal(length: int = 32) -> str:
    return some(string.hexdigits[:16], length)


def alnum(length: int = 36) -> str:
    return some(ALNUM, length)


def lower(length: int = 32) -> str:
    return some(string.ascii_lowercase + string.digits, length)


def word64(length: int = 40) -> str:
    """Base64 for addresses, which neither begins nor ends with a dash."""
    return alnum(1) + some(ALNUM + "_-", length - 2) + alnum(1)


def encoded(size: int = 32) -> str:
    return base64.b64encode(DRAWN.randbytes(size)).decode()


def uuid() -> str:
    return "-".join(hexadecimal(length) for length in (8, 4, 4, 4, 12))


def digits(length: int) -> str:
    return some(string.digits, length)


def spaced() -> str:
    """A password with spaces."""
    chosen = ("s3cr3t with spaces", "Xy9 kk2 zzQ", "correct horse battery 7staple", "P@ss w0rd")
    return DRAWN.choice(chosen)


def human() -> str:
    """A password as people choose them."""
    name = DRAWN.choice(NAMES)
    return name + str(DRAWN.randint(10, 9_999)) + DRAWN.choice(["", "", "!", "$", "#x", "_a"])


def word() -> str:
    return DRAWN.choice(["swordfish", "letmein", "opensesame", "correcthorse", "iloveyou"])


def made() -> str:
    """A password as a manager makes them, without quotes."""
    return alnum(3) + some(ALNUM + "!#$%^*+-_~@", 14) + digits(2) + alnum(1)


def phrase() -> str:
    return " ".join(DRAWN.sample(["correct", "horse", "battery", "staple", "velvet", "lemon"], 4))


def json_web_token() -> str:
    parts = ({"alg": "HS256", "typ": "JWT"}, {"sub": digits(10), "iat": 1_700_000_000})
    written = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    return ".".join([*(part.rstrip("=") for part in written), word64(43)])


def pem(kind: str, *, ends: bool = True, newline: str = "\n") -> str:
    body = encoded(400)
    lines = [f"{DASHES}BEGIN {kind}{DASHES}", *(body[i : i + 64] for i in range(0, len(body), 64))]
    return newline.join([*lines, f"{DASHES}END {kind}{DASHES}"] if ends else lines)


def putty() -> str:
    body = encoded(300)
    return "\n".join(body[i : i + 64] for i in range(0, len(body), 64)) + "\n"


# Credentials that are known by their form, whatever stands around them.
FORMS: list[tuple[str, Callable[[], str]]] = [
    ("aws access key", lambda: "AKIA" + some(string.ascii_uppercase + "234567", 16)),
    ("aws access key", lambda: "ASIA" + some(string.ascii_uppercase + "234567", 16)),
    ("github token", lambda: "gh" + DRAWN.choice("pousr") + "_" + alnum(36)),
    ("github token", lambda: "github_pat_" + alnum(22) + "_" + alnum(59)),
    ("gitlab token", lambda: "glpat-" + word64(20)),
    ("gitlab token", lambda: "gl" + DRAWN.choice(["rt", "dt", "cbt", "ptt"]) + "-" + word64(20)),
    ("slack token", lambda: f"xoxb-{digits(12)}-{digits(13)}-{alnum(24)}"),
    ("slack token", lambda: f"xoxp-{digits(11)}-{digits(11)}-{digits(12)}-{hexadecimal(32)}"),
    ("slack token", lambda: f"xapp-1-A{alnum(10).upper()}-{digits(13)}-{hexadecimal(64)}"),
    ("stripe key", lambda: DRAWN.choice("sr") + "k_live_" + alnum(24)),
    ("stripe key", lambda: "sk_test_" + alnum(99)),
    ("webhook secret", lambda: "whsec_" + alnum(32)),
    ("anthropic key", lambda: "sk-ant-api03-" + word64(93) + "AA"),
    ("openai key", lambda: "sk-" + alnum(20) + "T3BlbkFJ" + alnum(20)),
    ("openai key", lambda: "sk-proj-" + word64(74) + "T3BlbkFJ" + word64(74)),
    ("openai key", lambda: "sk-svcacct-" + word64(58)),
    ("google api key", lambda: "AIza" + "Sy" + word64(33)),
    ("google oauth secret", lambda: "GOCSPX-" + word64(28)),
    ("google oauth token", lambda: "ya29." + word64(120)),
    ("azure client secret", lambda: alnum(3) + "8Q~" + word64(34)),
    ("hugging face token", lambda: "hf_" + some(string.ascii_letters, 34)),
    ("npm token", lambda: "npm_" + alnum(36)),
    ("pypi token", lambda: "pypi-" + "AgEIcHlwaS5vcmc" + word64(150)),
    ("sendgrid key", lambda: f"SG.{word64(22)}.{word64(43)}"),
    ("twilio key", lambda: "SK" + hexadecimal(32)),
    ("mailgun key", lambda: "key-" + hexadecimal(32)),
    ("mailchimp key", lambda: hexadecimal(32) + "-us14"),
    ("discord token", lambda: f"M{DRAWN.choice('TDjz')}{alnum(24)}.{alnum(6)}.{word64(38)}"),
    ("telegram token", lambda: f"{digits(10)}:AA{word64(33)}"),
    ("digitalocean token", lambda: f"do{DRAWN.choice('opr')}_v1_" + hexadecimal(64)),
    ("databricks token", lambda: "dapi" + hexadecimal(32)),
    ("heroku key", lambda: "HRKU-AA" + word64(58)),
    ("shopify token", lambda: f"shp{DRAWN.choice(['at', 'ca', 'pa', 'ss'])}_" + hexadecimal(32)),
    ("square token", lambda: "sq0atp-" + word64(22)),
    ("linear key", lambda: "lin_api_" + alnum(40)),
    ("notion token", lambda: "ntn_" + digits(11) + alnum(35)),
    ("notion token", lambda: "secret_" + alnum(43)),
    ("vault token", lambda: "hvs." + word64(95)),
    ("atlassian token", lambda: "ATATT3xFfGF0" + word64(180)),
    ("airtable token", lambda: f"pat{alnum(14)}.{hexadecimal(64)}"),
    ("terraform token", lambda: f"{alnum(14)}.atlasv1.{alnum(67)}"),
    ("age key", lambda: "AGE-SECRET-KEY-1" + some("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58)),
    ("json web token", json_web_token),
    ("api token", lambda: "gsk_" + alnum(52)),
    ("api token", lambda: "xai-" + alnum(80)),
    ("api token", lambda: "sk-or-v1-" + hexadecimal(64)),
    ("api token", lambda: "dckr_pat_" + word64(27)),
    ("api token", lambda: "glsa_" + alnum(32) + "_" + hexadecimal(8)),
    ("api token", lambda: "dp.pt." + alnum(43)),
    ("private key", lambda: pem("RSA PRIVATE KEY")),
    ("private key", lambda: pem("OPENSSH PRIVATE KEY")),
    ("private key", lambda: pem("EC PRIVATE KEY")),
    ("private key", lambda: pem("ENCRYPTED PRIVATE KEY")),
    ("private key", lambda: pem("PRIVATE KEY", newline="\\n")),
    ("private key", lambda: pem("PGP PRIVATE KEY BLOCK")),
]  # fmt: skip

# Where they are met; § is the secret.
AROUND = """\
§
Rotate § before Friday.
I pasted it here by mistake: §
Ann's is §, Bob's is in the vault.
It is `§` (staging only).
{"name": "ci", "token": "§"}
export CI_TOKEN="§"
  - SERVICE_TOKEN=§
client = Client('§', timeout=30)
curl -H "Authorization: Bearer §" https://api.example.org/v1/items
The build log says\\n§\\nand then stops.
https://api.example.org/v1/items?page=2&token=§
<secret>§</secret>
The answer was:

    §

and nothing else.""".replace("\n\n    §\n\n", "↵↵    §↵↵").split("\n")

# Secrets that nothing but their name gives away: the kind, how they are made, where they stand.
NAMED: list[tuple[str, Callable[[], str], str]] = [
    ("password", human, "the password is §"),
    ("password", human, "The staging password is §."),
    ("password", human, "password: §"),
    ("password", human, "Password = §"),
    ("password", human, "the root password for the build server is §, ask Ann"),
    ("password", human, "Our wifi password is: §"),
    ("password", human, "The wifi password was changed to § last week."),
    ("password", human, "We set the admin password to § yesterday"),
    ("password", human, "Log in with user admin and password §"),
    ("password", human, "Use password '§' for the demo."),
    ("password", human, "The db password (prod) is §"),
    ("password", human, "password for bob@corp.example: §"),
    ("password", human, "Remember: the vault passphrase is '§'."),
    ("password", human, "the password is still § on the old box"),
    ("password", human, "Passwort: §"),
    ("password", human, "pw: §"),
    ("password", human, "user: bob, pass: §"),
    ("password", human, "admin credentials are admin:§"),
    ("password", human, "credentials: admin / §"),
    ("password", human, "**Password:** §"),
    ("password", human, "db:↵  password: |↵    §↵  port: 1"),
    ("password", word, "password: >-↵  §↵user: bob"),
    ("password", human, '"password": |2+ # mine↵↵    §'),
    ("password", human, "- name: DB_PASSWORD↵  value: |-↵    §↵- name: DB_HOST"),
    ("password", human, "password: |\r↵  §\r↵port: 1"),
    ("password", human, "**Password**: `§`"),
    ("password", human, "| Password | § |"),
    ("password", human, "DB_HOST=db↵DB_PASSWORD=§↵DB_PORT=5432"),
    ("password", human, "export PGPASSWORD=§"),
    ("password", human, "MYSQL_PWD=§ mysql -u root shop"),
    ("password", human, "SMTP_PASS=§"),
    ("password", human, "smtp_pass: §"),
    ("password", human, "ENV ROOT_PASSWORD §"),
    ("password", human, "RUN useradd app↵ENV ROOT_PASSWORD=§"),
    ("password", human, "spring.datasource.password=§"),
    ("password", human, "ansible_become_pass: §"),
    ("password", human, "- name: DB_PASSWORD↵  value: §"),
    ("password", human, '{"user": "bob", "password": "§"}'),
    ("password", human, "{'user': 'bob', 'passwd': '§'}"),
    ("password", human, r'"{\"user\": \"bob\", \"password\": \"§\"}"'),
    ("password", human, "<user>bob</user><password>§</password>"),
    ("password", human, '<add key="Password" value="§" />'),
    ("password", human, "const password = '§';"),
    ("password", human, 'password := "§"'),
    ("password", human, "$password = '§';"),
    ("password", human, "define('DB_PASSWORD', '§');"),
    ("password", human, "connect(host='db', password='§', port=5432)"),
    ("password", human, 'db_password: str = "§"'),
    ("password", human, "let pwd: string = '§';"),
    ("password", human, 'if password == "§":'),
    ("password", human, "os.environ['DB_PASSWORD'] = '§'"),
    ("password", human, "password=os.environ.get('DB_PASSWORD', '')↵admin_password='§'"),
    ("password", human, "DB_PASSWORD=${DB_PASSWORD:-§}"),
    ("password", human, "CREATE USER bob WITH PASSWORD '§';"),
    ("password", human, "ALTER USER 'bob' IDENTIFIED BY '§';"),
    ("password", human, "backup --password § --host db"),
    ("password", human, "backup --password=§ --host db"),
    ("password", human, "mysql -u root -p§ shop"),
    ("password", human, "sshpass -p '§' ssh bob@host"),
    ("password", human, "docker login -u bob -p § registry.example.org"),
    ("password", human, "curl -u admin:§ https://example.org/api"),
    ("password", human, "redis-cli -h cache -a § ping"),
    ("password", human, "server.login('bob', '§')"),
    ("password", human, "Use § as the admin password."),
    ("password", human, "I changed the password from § on Monday."),
    ("password", human, "password → §"),
    ("password", human, "Password:↵§"),
    ("password", human, "'password' => '§',"),
    ("password", human, 'variable "db_password" {↵  default = "§"↵}'),
    ("password", human, "machine example.org login bob password §"),
    ("password", human, "username=bob&password=§&remember=1"),
    ("password", human, "Server=db;Database=shop;User Id=sa;Password=§;Encrypt=True"),
    ("password", lambda: "Sommer 2024!", "Server=x;User Id=sa;Password=§;"),
    ("password", lambda: "Sommer 2024!", 'cs = "Host=db;Port=1;UID=sa;Pwd=§;Encrypt=True"'),
    ("password", spaced, "export DB_PASSWORD='§'"),
    ("password", spaced, 'PASSWORD="§"'),
    ("password", spaced, "password = '§'"),
    ("password", spaced, "db_password: '§'"),
    ("password", lambda: "P@ss w0rd", "password: §"),
    ("password", lambda: "hunter2is w0rd!", "The router.↵my password: §↵It is new."),
    ("key", lambda: hexadecimal(64), "secret_key_base: §"),
    ("key", lambda: hexadecimal(128), "SECRET_KEY_BASE=§"),
    ("password", human, "jdbc:mysql://db/shop?user=bob&password=§"),
    ("password", human, "Das Passwort für den Server ist §."),
    ("password", human, "Das Kennwort vom alten Gateway lautet § und gilt bis Mai"),
    ("password", human, "Das WLAN-Passwort heißt jetzt §, bitte nicht weitergeben"),
    ("password", human, "Das Passwort wurde am Montag auf § geändert."),
    ("password", human, "Passwort für die Datenbank: §"),
    ("password", human, "Melde dich als bob mit dem Passwort § an"),
    ("password", human, "Le mot de passe du serveur est §."),
    ("password", human, "Le mot de passe est maintenant § sur l'ancienne machine"),
    ("password", human, "mot de passe de l'administrateur : §"),
    ("password", human, "Mot de passe d'Anna : §"),
    ("password", human, "Le mot de passe a été changé en § hier"),
    ("password", human, "MOT_DE_PASSE=§"),
    ("password", human, "La contraseña del servidor de pruebas es §."),
    ("password", human, "contraseña: §"),
    ("password", human, "Entra con la contraseña § y luego reinicia"),
    ("password", human, "La contraseña del wifi era § hasta mayo"),
    ("password", human, "La password del server di prova è §."),
    ("password", human, "La parola d'ordine per il router è §"),
    ("password", human, "Password di amministrazione: §"),
    ("password", human, "A senha do servidor é §."),
    ("password", human, "Пароль от базы: §"),
    ("password", human, "пароль — §"),
    ("password", human, "hasło do bazy: §"),
    ("password", human, "lösenord: §"),
    ("password", human, "数据库密码：§"),
    ("password", human, "密码是 §。"),
    ("password", human, "パスワードは § です"),
    ("password", human, "비밀번호는 § 입니다"),
    ("password", lambda: "hunter2-" + alnum(3), "Das Passwort für den Server ist §"),
    ("password", lambda: "hunter2-" + alnum(3), "Le mot de passe du serveur est §"),
    ("password", word, "DB_PASSWORD=§"),
    ("password", word, "POSTGRES_PASSWORD: §"),
    ("password", word, "password: §"),
    ("password", word, 'password="§"'),
    ("password", word, "backup --password §"),
    ("password", word, "The password is §."),
    ("password", made, "The new password is §"),
    ("password", made, "DB_PASSWORD='§'"),
    ("password", made, '"password": "§",'),
    ("password", phrase, 'passphrase = "§"'),
    ("url password", human, "postgres://bob:§@db.internal:5432/shop"),
    ("url password", human, "redis://:§@cache:6379/0"),
    ("url password", human, "mongodb+srv://app:§@cluster0.mongodb.net/test?retryWrites=true"),
    ("url password", human, "git clone https://bob:§@git.example.org/team/repo.git"),
    ("url password", word, "Broker: amqp://guest:§@rabbit//, two nodes"),
    ("key", hexadecimal, 'api_key = "§"'),
    ("key", alnum, "API_KEY=§"),
    ("key", alnum, "X-API-Key: §"),
    ("key", alnum, '"apiKey": "§"'),
    ("key", alnum, "report --api-key § --all"),
    ("key", hexadecimal, "Our Datadog API key is §"),
    ("key", uuid, "HEROKU_API_KEY=§"),
    ("key", encoded, "encryption key: §"),
    ("key", encoded, "PrivateKey = §"),
    ("key", hexadecimal, "ALGOLIA_ADMIN_KEY=§"),
    ("key", lambda: alnum(39), "MAPS_KEY = '§'"),
    ("key", lambda: encoded(30), "AWS_SECRET_ACCESS_KEY=§"),
    ("key", lambda: encoded(30), "Secret access key: §"),
    ("key", made, "SECRET_KEY = '§'"),
    ("token", lambda: hexadecimal(40), "token: §"),
    ("token", alnum, "auth_token = '§'"),
    ("token", alnum, "export FOO_TOKEN=§"),
    ("token", alnum, "https://example.org/x?access_token=§&page=1"),
    ("token", alnum, "Auth -> https://example.org/x#access_token=§"),
    ("key", alnum, "AUTH=https://example.org/x?api_key=§"),
    ("secret", alnum, "Token: https://example.org/x?client_secret=§"),
    ("secret", lambda: alnum(32).upper(), "otpauth://totp/Shop:bob?secret=§&issuer=Shop"),
    ("secret", lambda: alnum(32).upper(), "Token: otpauth://totp/Shop:bob?secret=§&issuer=Shop"),
    ("password", human, "Key=db/prod/password=§"),
    ("token", uuid, "//registry.example.org/:_authToken=§"),
    ("token", hexadecimal, "Twilio auth token: §"),
    ("token", alnum, "The API token for CI is §."),
    ("token", lambda: hexadecimal(40), 'client.setToken("§")'),
    ("secret", lower, "client_secret: §"),
    ("secret", encoded, '"client_secret": "§"'),
    ("secret", encoded, "JWT_SECRET=§"),
    ("secret", lambda: word() + digits(3), "SESSION_SECRET=§"),
    ("authorization header", alnum, "Authorization: Bearer §"),
    ("authorization header", lambda: encoded(15), "authorization: basic §"),
    ("authorization header", alnum, "headers = {'Authorization': 'Token §'}"),
    ("slack webhook", lambda: f"T{alnum(8)}/B{alnum(8)}/{alnum(24)}",
     "https://hooks.slack.com/services/§"),
    ("discord webhook", lambda: word64(68), "https://discord.com/api/webhooks/1234567890/§"),
    ("azure key", lambda: encoded(64), "AccountName=shop;AccountKey=§;EndpointSuffix=x"),
    ("azure signature", lambda: alnum(43) + "%3D", "https://shop.blob.example.net/a?se=2025&sig=§"),
    ("mailgun key", lambda: f"{hexadecimal(32)}-{hexadecimal(8)}-{hexadecimal(8)}", "Mailgun: §"),
]  # fmt: skip

# Look-alikes, and talk about secrets; what stands in guillemets is drawn, ↵ ends a line.
HARMLESS = r"""
password=<your password>
password=<password>
PASSWORD=$DB_PASSWORD
password: ${TOKEN}
DB_PASSWORD=${DB_PASSWORD:-}
DB_PASSWORD=${DB_PASSWORD:?must be set}
password = os.environ["X"]
password = os.environ.get("DB_PASSWORD", "")
password = os.getenv("DB_PASSWORD")
const token = process.env.TOKEN;
password: process.env.DB_PASSWORD,
password = getpass()
password = getpass.getpass("Password: ")
password: ********
password=changeme
password: example
password=xxx
password=xxxxxxxx
password: str
password: str = None
password: Optional[str] = None
token: Optional[str]
token: str | None = None
password: |↵  ${DB_PASSWORD}↵user: bob
password: |↵  Choose a long one.↵  Write it down nowhere.
password is required
The password is required for login.
token = next(tokens)
the secret is to let the dough rest
The secret is in the sauce.
The secret to good bread is time.
Das Passwort ist falsch.
Das Passwort für den Server ist im Tresor, Fach 12.
Das Passwort ist 12-stellig und läuft nach 90 Tagen ab.
Das Passwort ist seit dem 3.5.2025 abgelaufen
Das Passwort für den Server wurde am Montag geändert.
Passwort: erforderlich
Ein Passwort mit mindestens 12 Zeichen ist Pflicht.
Das Kennwort lautet wie der Name der Katze
Wer das Passwort vergisst, ist auf Anna angewiesen.
Le mot de passe est obligatoire.
Le mot de passe est dans le coffre, tiroir 12.
Le mot de passe du serveur est changé tous les 90 jours.
Le mot de passe doit avoir 12 signes, le code est dans le tiroir.
Mot de passe : oublié
Le mot de passe a été changé en mai 2025
La contraseña es incorrecta.
La contraseña es de 12 caracteres y caduca en 90 días.
¿Olvidaste tu contraseña?
La contraseña del servidor es la misma que antes
La password è scaduta il 3 maggio.
La password è obbligatoria e deve avere 12 caratteri
Con la password giusta il server si apre in 2 secondi.
пароль: обязателен
пароль: см. 1Password
hasło: wymagane
密码：请输入您的密码
密码必须至少12位
密码有效期90天
パスワードは8文字以上
비밀번호는 8자 이상
password reset link
Send a password reset link to the user.
api_key=YOUR_API_KEY
API_KEY=your-api-key-here
password: {{ vault_password }}
password: "{{ lookup('env', 'DB_PASSWORD') }}"
The example key «aws-id» is from the documentation.
aws_secret_access_key = «aws-secret»
commit «sha1» fixed it
sha256:«sha256»
md5 «md5»
The id is «uuid».
ULID 01ARZ3NDEKTSV4RRFFQ69G5FAV sorts by time
<img src="data:image/png;base64,«base64»«ssh»==">
"integrity": "sha512-«base64»"
ssh-ed25519 «ssh» bob@laptop
«dashes»BEGIN PUBLIC KEY«dashes»↵MII«base64»↵«dashes»END PUBLIC KEY«dashes»
«dashes»BEGIN CERTIFICATE«dashes»↵MII«base64»↵«dashes»END CERTIFICATE«dashes»
!function(e,t){"object"==typeof exports?module.exports=t():e.key=t(),e.token=n.password}(this)
image: nginx@sha256:«sha256»
numpy==2.4.6
semver 1.2.3-beta.4+build.567
Call +1 (555) 010-4477 or 020 7946 0958.
ISBN 978-3-16-148410-0
IBAN DE89 3704 0044 0532 0130 00
/usr/local/lib/python3.11/site-packages/numpy/core/_multiarray_umath.so
https://example.org/blog/2024/05/why-we-moved-from-monolith-to-services-and-back-again
https://shop.example.org/search?q=red+shoes&sort_key=price&page=3
https://github.com/org/repo/commit/«sha1»
color: #ff8800; background: #1a2b3c
cache_key=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0bb822cd15d6c15b0f00a08
primary_key=True
primary_key: user_id
sort_key: created_at
key: value
foreign_key = "orders.customer_id"
keyboard=us
tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
max_tokens=4096
token_count: 1523
author: Jane Doe
The secretary called at 10:15.
monkey=banana
monkeypatch.setenv("TOKEN", "x")
The access token expires after 3600 seconds.
password_hash = bcrypt.hash(password)
if not password:
def login(username, password):
self.password = password
user.password = new_password
login(username=username, password=password)
password=self._password
form.password.data
"password": "string"
"password": null
password: false
password=None,
password=""
password=''
password = input("Password: ")
The password must be at least 12 characters.
Passwords are hashed with argon2id.
Reset your password at https://example.org/reset.
Change the password every 90 days.
password policy: at least 8 characters
password-protected zip
passwordless login
The password field is empty.
Password: required
Password: (hidden)
Enter password:
Enter your password now:
Password for bob:
Forgot password?
The password was wrong.
Your password has been changed.
password is never stored in plain text
The password is stored hashed.
the password is hashed with bcrypt
The password is case-sensitive.
the password is at least eight characters long
password is checked against the list of leaked ones
The token is valid for 15 minutes.
the token is stored in the keychain
The token is refreshed automatically.
token: The CSRF token
token = request.headers.get("Authorization")
token = create_access_token(identity=user.id)
token = jwt.encode(payload, key, algorithm="HS256")
token: Token
token_type: bearer
token_url = "https://auth.example.org/oauth/token"
next_page_token=CAUQAA
nextPageToken: "CiAK«24»"
eos_token = "<|endoftext|>"
pad_token_id=50256
num_tokens = 128000
tokens = text.split()
for token in tokens:
tokens: 1,234
input_tokens=1523 output_tokens=88
secret santa is on Friday
secrets: inherit
secretName: db-credentials
secretKeyRef: {name: db-credentials, key: password}
secret: db-credentials-v2
key: password
name: password
type: password
<input type="password" name="password" id="password" autocomplete="current-password">
<label for="password">Password</label>
placeholder="Password"
key = lambda item: item[1]
sorted(items, key=len)
sorted(rows, key=lambda row: row["created_at"])
max(counts, key=counts.get)
for key, value in data.items():
key=f"user:{user_id}"
key = (row.id, row.name)
cache_key = f"{prefix}:{user_id}"
redis.get(key)
partition_key: tenant_id
PRIMARY KEY (id)
FOREIGN KEY (customer_id) REFERENCES customers (id)
key_id: 4f3a9c21
key_name: deploy
AWS_ACCESS_KEY_ID=$AWS_ACCESS_KEY_ID
ssh -i ~/.ssh/id_ed25519 bob@host
public_key: ssh-rsa «ssh»
PUBLIC_KEY=MFkw«43»
host_key: SHA256:«43»
The key fingerprint is SHA256:«43» bob@laptop
hotkey: Ctrl+Shift+P
keyCode === 13
press any key to continue
API keys are kept in the vault.
The API key is in 1Password under "Stripe".
Ask Ann for the API key.
api_key: ${{ secrets.API_KEY }}
token: ${{ secrets.GITHUB_TOKEN }}
GITHUB_TOKEN: ${{ github.token }}
env: API_KEY: ((api-key))
api_key = settings.API_KEY
api_key=config["api_key"]
apiKey: this.apiKey,
apiKey: import.meta.env.VITE_API_KEY
"apiKey": "<API_KEY>"
"api_key": "..."
api_key="sk-..."
OPENAI_API_KEY=sk-«xs»
export GITHUB_TOKEN=ghp_«xs»
ANTHROPIC_API_KEY=your_key
Authorization: Bearer <token>
Authorization: Bearer $TOKEN
Authorization: Bearer ${TOKEN}
Authorization: Bearer YOUR_ACCESS_TOKEN
Authorization: Bearer {token}
-H "Authorization: Bearer $GITHUB_TOKEN"
Bearer authentication is used for the API.
basic authentication with username and password
https://user:password@host/path
https://<user>:<password>@host/
postgres://${DB_USER}:${DB_PASSWORD}@${DB_HOST}/app
postgresql://user:pass@localhost/db
http://localhost:8080/users/@me
git@github.com:org/repo.git
ssh://git@github.com:22/org/repo.git
http://example.org:8080/a?email=bob@example.org
https://medium.com/@bob/some-post
Contact: mailto:bob@example.org
redis://localhost:6379/0
docker run -p 8080:80 nginx
docker run -u 1000:1000 -p 5432:5432 postgres
mkdir -p build/output
mysql -u root -p shop
ssh -p 2222 bob@host
The passphrase is optional.
vault kv get secret/data/app
secret/data/prod/db#password
op://Private/GitHub/token
password: !vault |
password: !secret wifi_password
password_file: /run/secrets/db_password
DB_PASSWORD_FILE=/run/secrets/db_password
PWD=/home/bob/project
OLDPWD=/tmp
echo $PWD
pwd: /srv/app
password=%s
"password=%s" % password
f"password={password}"
"password=" + password
'token=' + token + '&user=' + user
print("password:", password)
log.info("token: %s", token)
--password PASSWORD
--password <password>
--password-stdin
--token TOKEN   the API token
--api-key KEY
-p, --password TEXT  The password.
-e POSTGRES_PASSWORD
pass: 12, fail: 3
PASS: test_login
First pass: 80 %
pass = True
by-pass: 3
pass the salt
compass: north
passport: C01X00T47
The passenger's seat: 14A
Tests pass on Python 3.11.
bypass=true
credentials: include
credentials = load_credentials(path)
credentials: same-origin
auth: required
auth=(user, password)
auth_provider: github
oauth_callback: https://example.org/callback
session_id: «uuid»
request_id=«md5»
trace_id: «md5»
ETag: "«sha1»"
x-amz-request-id: 4442587FB7D0A2F9
Content-MD5: Q2h1Y2sgSW51ZWdyaXR5IQ==
build: 20240531-1a2b3c4
nonce: 8f14e45fceea167a
salt rounds: 12
checksum of the key: 9f86d081884c7d65
password hash: $2b$12$KIXQ4S0u5b1fZ1
The sha1 of the token is «sha1».
node_modules/.pnpm/react@18.2.0_abc123def456/node_modules
arn:aws:secretsmanager:us-east-1:123456789012:secret:prod/db-AbCdEf
secret_arn = arn:aws:secretsmanager:us-east-1:123456789012:secret:prod/db-AbCdEf
projects/my-project/secrets/db-password/versions/3
0x«sha1» is a token contract
token address: 0x«sha1»
pk_live_ keys are public
stripe_publishable_key: pk_test_«24»
site_key: 6Le«43»
measurement_id: G-1A2B3C4D5E
sk-learn is not sk-image
class="btn sk-circle-fade-dot sk-folding-cube"
task-management-for-distributed-teams-in-2024
risk-assessment-of-the-third-quarter
disk-usage-analyzer-for-gnome-desktops
ghp_ tokens start with four letters
The prefix glpat- marks a GitLab token.
AKIA is the prefix of a long-lived key.
«dashes»BEGIN RSA PRIVATE KEY«dashes» is how a PEM key begins.
A file that starts with «dashes»BEGIN OPENSSH PRIVATE KEY«dashes» is a private key.
xoxb- tokens are for bots
npm_config_cache=/tmp/npm
npm_lifecycle_event=test
hf_hub_download(repo_id="bert-base-uncased")
dp.sh runs the deploy
r8_unorm is a texture format
pat = re.compile(r"\d+")
SG.UI.Components.Button
SKU SK1234567890
eyJ is how every JWT starts
Base64: TWFuIGlzIGRpc3Rpbmd1aXNoZWQsIG5vdCBvbmx5IGJ5IGhpcyByZWFzb24=
R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7
WHERE password IS NULL
ALTER TABLE users ADD COLUMN password VARCHAR(255) NOT NULL
password TEXT NOT NULL
SELECT token FROM sessions WHERE id = 1
password = :password
password = ?
password=@password
password = &password
"password": {"type": "string", "minLength": 8}
"token": {"$ref": "#/components/schemas/Token"}
password: z.string().min(8)
password: Joi.string().required()
password: String!
password String?
password: SecretStr
password: &str
secret: Vec<u8>
token: impl Into<String>
val password: String
let password = prompt("Password?");
$password = $_POST['password'];
$password = trim($input);
password == confirm_password
if password != other:
password.length >= 8
passwords don't match
"passwordMismatch": "The passwords do not match"
"password": "Password"
"password": "Passwort"
"forgot_password": "Forgot your password?"
"confirmPassword": "Confirm password"
"password": "Mot de passe"
password: "Must be at least 8 characters"
password: "use OAuth2 to log in"
password = "the v2 password"
password: "The sha256 of it"
password: "in a k8s secret"
PASSWORD="Must have 8 characters"
Server=x;User Id=sa;Password=your password;
Server=x;User Id=sa;Password={password};
secret_key_base: <%= ENV["SECRET_KEY_BASE"] %>
api_key_base: https://example.org/v2/keys
key = "value"
"key": "user.profile.settings"
i18n_key: checkout.payment.button.label
translation key: checkout.payment.title
registry_key = "HKEY_LOCAL_MACHINE\\Software\\Vendor"
object_key: uploads/2024/05/31/IMG_20240531_180000.jpg
s3_key = "backups/db-2024-05-31T18-00-00Z.dump.gz"
idempotency_key: «uuid»
routing_key=orders.created.v2
group_key: team-a/2024
license: MIT OR Apache-2.0
The keynote starts at 09:00.
turkey=dinner
whiskey: 12 years
jockey: Frankie
keypair = KeyPair.generate()
keystore.jks
keyring: gnome
keywords: alpha, beta
key points: speed, cost, quality
The key insight: cache the embeddings.
The key is that nobody deploys on Fridays.
The key to success is consistency2024.
secret agent 007
top secret: yes
open secret
The Secret Garden
credit card ending 4242
tracking number 1Z999AA10123456784
VIN 1HGCM82633A004352
MAC 00:1A:2B:3C:4D:5E
IPv6 2001:0db8:85a3:0000:0000:8a2e:0370:7334
lat 52.5200, lon 13.4050
MongoDB ObjectId 507f1f77bcf86cd799439011
GUID {6B29FC40-CA47-1067-B31D-00DD010662DA}
Kubernetes pod api-7d4b9c6f5d-x2x9k restarted
sess-2024-05-31.log
com.example.app.MainActivityViewModelFactoryProviderImplementation
ThisIsAVeryLongIdentifierNameWithManyWordsInIt2
AbstractSingletonProxyFactoryBean
Rotate the token every 90 days; the runbook says how.
Who knows the password for the staging database?
We moved all secrets into Vault in March.
The API key belongs to the billing team, not to us.
Never commit a password, an API key or a token.
password managers: 1Password, Bitwarden
The key risk is that nobody owns the migration.
passwords are rotated by the cron job at 02:00
token bucket: 600 requests a minute
The tokenizer cuts at 256 tokens, and the rest is lost.
Token limit: 200000
total_tokens: 128431
secretsmanager:GetSecretValue is denied for the role
secret_name = "prod/payments/stripe"
secret_id=prod/payments/stripe
SecretString=$(aws secretsmanager get-secret-value --secret-id prod/db)
TOKEN=$(cat /run/secrets/token)
TOKEN=`vault read -field=token auth/approle/login`
password="$(pass show db/prod)"
PASSWORD="$1"
--password "$DB_PASSWORD" --host "$DB_HOST"
mysql -u root -p"$MYSQL_PWD" shop
sshpass -e ssh -p 2222 bob@host
redis-cli -h cache -p 6379 ping
mongosh --port 27017 shop
docker run --user 1000:1000 alpine curl -s example.org
curl -s -o /dev/null -w "%{http_code}" https://example.org:8443/health
curl -u "$USER:$TOKEN" https://api.example.org
curl --user <name>:<token> https://api.example.org
docker login -u bob --password-stdin registry.example.org
password: "${DB_PASSWORD}"
password: "%DB_PASSWORD%"
password: '#{ENV["DB_PASSWORD"]}'
password: @Value("${db.password}")
password = ENV.fetch("DB_PASSWORD")
password = Rails.application.credentials.db[:password]
password = System.getenv("DB_PASSWORD");
password = config.get("database", "password")
password = request.form["password"]
password = data.get("password")
password = args.password
password = self.cleaned_data["password1"]
password1 = forms.CharField(widget=forms.PasswordInput)
password = models.CharField(max_length=128)
password = validated_data.pop("password")
password_digest :string
t.string :password_digest
validates :password, length: { minimum: 8 }
user.set_password(password)
check_password(password, user.password)
hash_password(plain: str) -> str
def verify(token: str, secret: bytes) -> bool:
token = secrets.token_urlsafe(32)
secret = secrets.token_hex(16)
SECRET_KEY = os.urandom(32)
SECRET_KEY = env("SECRET_KEY")
SECRET_KEY = config("SECRET_KEY", default="")
api_key: Annotated[str, Header()]
api_key = Depends(get_api_key)
apiKey?: string;
readonly token: string;
private readonly apiKey: ApiKey,
token: tokenSchema.parse(input.token),
const { token, password } = req.body;
const [password, setPassword] = useState("");
token && localStorage.setItem("token", token);
this.token = response.data.token;
headers: { Authorization: `Bearer ${token}` },
"Authorization": f"Bearer {token}",
Authorization: Basic {{ credentials }}
Authorization: Negotiate
WWW-Authenticate: Basic realm="staging"
Proxy-Authorization: <redacted>
x-api-key: {{apiKey}}
"x-api-key": process.env["ANTHROPIC_API_KEY"],
openai.api_key = os.getenv("OPENAI_API_KEY")
OPENAI_API_KEY=<your key>
STRIPE_SECRET_KEY=sk_test_...
AWS_SECRET_ACCESS_KEY=
AWS_SECRET_ACCESS_KEY: ((aws-secret))
DATABASE_URL=postgres://localhost:5432/app_development
DATABASE_URL=postgres://app@db.internal:5432/app
amqp://rabbit:5672/%2F
ftp://ftp.example.org/pub/README.txt
http://[::1]:8080/@vite/client
https://example.org:8443/@scope/package@1.2.3
https://registry.npmjs.org/@types/node/-/node-20.1.0.tgz
https://example.org/docs#token=section-3
https://example.org/?utm_source=mail&key=1&lang=en
https://example.org/?code=200&state=open
https://youtu.be/dQw4w9WgXcQ?t=43
https://docs.google.com/document/d/1aBcDeFgHiJkLmNoPqRsTuVwXyZ/edit
git+ssh://git@github.com/org/repo.git#semver:^1.2
npm install --save-dev @types/node@20
pip install --hash=sha256:«sha256» requests
poetry.lock content-hash = "«sha256»"
go.sum: golang.org/x/text v0.14.0 h1:«43»=
"resolved": "https://registry.npmjs.org/a/-/a-1.0.0.tgz", "integrity": "sha512-«base64»"
docker pull ghcr.io/org/app@sha256:«sha256»
FROM python:3.11-slim@sha256:«sha256»
git show «sha1»
Merge «sha1» into main
https://github.com/org/repo/blob/«sha1»/src/main.py#L10-L20
-- «uuid» 2024-05-31 18:00:00 INFO done
X-Request-Id: «uuid»
user_id: «uuid»
run «md5» failed after 3 s
etag "«md5»"
blob «sha1» 1523
index 1a2b3c4..5d6e7f8 100644
ssh-rsa «ssh» ann@desk
ecdsa-sha2-nistp256 «ssh»
«dashes»BEGIN PGP PUBLIC KEY BLOCK«dashes»↵«base64»↵«dashes»END PGP PUBLIC KEY BLOCK«dashes»
«dashes»BEGIN CERTIFICATE REQUEST«dashes»↵MII«base64»↵«dashes»END CERTIFICATE REQUEST«dashes»
«dashes»BEGIN SSH2 PUBLIC KEY«dashes»↵«ssh»
grep -r "BEGIN RSA PRIVATE KEY" .
if b"PRIVATE KEY" in data:
Private-Lines: 8 says how many lines of base64 follow.
src: url(data:font/woff2;base64,«base64»)
//# sourceMappingURL=data:application/json;base64,«base64»
var a=function(t,n){return t.key===n.key&&t.token!==n.token};
e.exports={password:t,token:n,secret:r}
function(e){e.password=e.password||"";e.token=null}
{keyCode:13,key:"Enter",code:"Enter"}
{"key": "ctrl+shift+k", "command": "editor.action.deleteLines"}
{"key": "theme", "value": "dark"}
<key>CFBundleIdentifier</key><string>org.example.app</string>
<string name="password_hint">Password</string>
<input name="token" type="hidden" value="">
<button key={item.id}>Save</button>
"login.password.label": "Password",
"login.password.placeholder": "Enter your password",
"errors.password.tooShort": "The password is too short.",
msgid "Password:"
"passwort": "Passwort"
Passwort vergessen?
Mot de passe oublié ?
Das Passwort ist falsch.
| Name | Type | Description |
| password | string | The password of the user |
| token | string | required |
| `api_key` | `str` | Key of the service, from the console |
- `password` (string, required): the password
- token: the CSRF token, from the cookie
- **secret**: shared with the webhook's sender
password (required)
password [optional]
:param password: the password to check
:param str token: token of the session
@param token the token to verify
@param {string} password - The password.
password: The password to hash.
token: A valid access token.
key: The name of the entry.
Args: key (str): the key to look up.
Keys are sorted by name; values by date.
The answer key is on page 42.
Low-key launch on 2024-06-01
Key: A = excellent, B = good
press Esc key 2 times
musical key: F#m
A-key: 440 Hz
F5 key
Key Largo
The hockey team won 3:2.
donkey kong 64
Author: secretariat@example.org
a secretive person
tokenize("a b c")
token_ids = [101, 2023, 102]
tokens_per_second=41.7
special_tokens_map.json
tokenization_utils_base.py
PASS: test_versions.py::test_upgrade_2to3
FAIL: tests/test_auth.py
first_pass = run(data)
one-pass algorithm
pass
    pass  # nothing to do
pass-through: true
passing=12 failing=0
passed: 24
passenger: 2
passport.use(new LocalStrategy())
passive: true
compass.bearing: 270
pwd
pwd && ls -la
cd "$(pwd)"
cwd=/srv/app pwd=/srv/app
crypto.createHash("sha256").update(password).digest("hex")
password -> argon2id hash
password: argon2id
password encryption: scram-sha-256
password_encryption = scram-sha-256
hashing password with PBKDF2-HMAC-SHA256, 600000 rounds
min_password_length = 12
password_min_length: 12
PASSWORD_RESET_TIMEOUT=3600
password_changed_at: 2024-05-31T18:00:00Z
last_password_change=2024-05-31
token_expires_at: 1717178400
token expires in 3600
ACCESS_TOKEN_EXPIRE_MINUTES=30
TOKEN_TTL=3600
TOKEN_URL=https://auth.example.org/token
token_endpoint: https://auth.example.org/oauth2/v1/token
SECRET_NAME=prod-db
SECRET_ARN=arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbC123
KEY_PATH=/etc/ssl/private/server.key
PRIVATE_KEY_PATH=./keys/private.pem
private_key = "/etc/ssl/private/server.key"
ssl_key: certs/server.key
--key server.key --cert server.crt
IdentityFile ~/.ssh/id_rsa
ssh-keygen -t ed25519 -C "bob@laptop"
kubectl create secret generic db --from-literal=password="$DB_PASSWORD"
kubectl get secret db -o jsonpath="{.data.password}"
vault write auth/userpass/users/bob password=@password.txt
gh secret set API_KEY < key.txt
secrets.GITHUB_TOKEN is set by the runner
AccountKey=<key>;EndpointSuffix=core.windows.net
sig=valid
&sig=abc
Twilio SIDs start with AC or SK.
sk-SK is the Slovak locale
sk_live_ and rk_live_ keys must not be logged.
gho_ tokens come from OAuth apps
xoxb is the prefix of a bot token
hf_transfer==0.1.6
dapi is the Databricks prefix
SG.1.2
ya29. is how Google's access tokens start
a.b.c
1.2.3.4:5432
00:1A:2B:3C:4D:5E
+49 30 901820
4111 1111 1111 1111 is Visa's test card
GB29 NWBK 6016 1331 9268 19
0-306-40615-2
#1a2b3c #ffeedd
rgba(255, 136, 0, 0.5)
v2.10.0-rc.1+20240531.abcdef
SELECT * FROM users WHERE password = crypt($1, password)
GRANT ALL ON shop.* TO 'bob'@'%' IDENTIFIED BY PASSWORD '*'
UPDATE users SET password = NULL
CREATE TABLE tokens (token TEXT PRIMARY KEY, secret BLOB)
""".strip("\n").split("\n")

# A word for a secret, something that gives it a value or nothing, and the value in guillemets.
GIVEN = """
auth token is ‹«32»›
the auth token is ‹«32»›
use auth token ‹«32»› for staging
auth key is ‹«32»›
secret key is ‹«32»›
secret key = ‹«32»›
Django secret key is ‹«32»›
access token is ‹«32»›
api key is ‹«32»›
secret key: ‹«32»›
The secret key of the staging shop is ‹«32»›.
The token that CI deploys with is ‹«32»›.
The bearer token for the billing API is now ‹«32»›
our OpenWeather api key was changed to ‹«32»› on Monday
client secret ‹«32»›
The client secret is "‹«32»›".
refresh token → ‹«32»›
auth_key=‹«32»›
Auth token (prod): ‹«32»›
API token for Jenkins: ‹«32»›, valid until May
Use the deploy key ‹«32»› on the runner.
my api token is ‹«32»›, please rotate it
session secret is '‹«32»›'
signing secret = ‹«32»›
The webhook secret is ‹«32»›
The storage key is ‹«48»›
encryption key is ‹«32»› since March
private key is ‹«48»›
master key ‹«32»›
the license key is ‹«license»›
secret access key is ‹«48»›
service token ‹«32»› expires in May
Set the auth token to ‹«32»› in .env
The app key is ‹«uuid»›
the api key is ‹«letters»›
auth token: ‹«letters»›
secret key ‹«md5»›
token is ‹«sha1»›
Der API-Token lautet ‹«32»›.
Der geheime Schlüssel liegt im Tresor, das Token ist ‹«32»›
Das Auth-Token für den Runner ist ‹«32»›
Le token d'accès est ‹«32»›
La clé est perdue ; le secret est ‹«32»›
El token de acceso es ‹«32»›
Il token di accesso è ‹«32»›
passphrase: ‹tango horse battery staple›
wifi password: ‹Blue Sky 2024!›
db password: ‹Zx9 kk2 Lm4›
Passphrase: ‹tango horse battery staple›, for the backup disk
The passphrase is "‹tango horse battery staple›".
passphrase "‹velvet lemon harbour quartz›"
passphrase = ‹velvet lemon harbour quartz›
WLAN-Passwort: ‹Blaue Lagune 2024!›
Mot de passe du wifi : ‹Lune Bleue 2024!›
contraseña: ‹luna azul 77 Mar›
The guest wifi password is '‹Blue Sky 2024!›'.
GPG passphrase: ‹correct-horse-battery-staple›
backup passphrase: ‹Correct Horse Battery Staple 9›
- Password: ‹Zx9 kk2 Lm4›
* wifi password: ‹Summer Rain 1987›
password: "‹open sesame now please›"
The router (admin): password ‹Tr0ub4dor›, port 8443
password ‹hunter2!x› works on the old box
the ssh passphrase was ‹Tr0ub4dor&3›
pin and password: ‹kitten-4821›
new password is ‹swordfish›
login password: ‹letmein›
Das Passwort ist ‹Sommer2024!›
Neues Passwort: ‹Sommer2024!›
Passwort vom NAS ist ‹kaktus77›
The HMAC secret we use is ‹«32»›
Our shared secret with ACME is ‹«32»›.
token value is ‹«32»›
API-Schlüssel: ‹«32»›
Clé API : ‹«32»›
la clave de API es ‹«32»›
The production database password changed to ‹Kr4ken!Bay›
user root / password ‹Gr8Wall77›
default password (‹Gr8Wall77›)
The password that Ann set is ‹Gr8Wall77›
PIN and passphrase: ‹orbit velvet canyon lantern›
seed phrase: ‹orbit velvet canyon lantern dust mango river stone flag cabin tuna wolf›
SSH key passphrase = ‹orbit velvet canyon lantern›
mot de passe«nbsp»: ‹Soleil88xyz!›
Password:«narrow»‹Skua29xyz!›
The password«nbsp»is ‹Skua29xyz!›
The password is«thin»‹Skua29xyz!›
ｐａｓｓｗｏｒｄ：‹hunter38x!›
Ｐａｓｓｗｏｒｄ«wide»＝«wide»‹ｈｕｎｔｅｒ３８ｘ›
password：«wide»‹hunter38x!›
contraseña«narrow»:«nbsp»‹Soleil88xyz!›
API key: ‹«32»›
password: "‹two words 86!›"
password is '‹Horse! Battery 87›'
psk="‹hunter45 xyz›"
psk=‹hunter45xyz›
My ssh key passphrase is "‹Tasmanian Devil 5›"
password = «three»‹two words 86!›«three»
password = '''‹Horse! Battery 87›'''
password: '‹it''s hunter86x!›'
the passphrase is ‹correct horse battery staple›
The passphrase is ‹velvet lemon harbour quartz›.
root's password has been reset to ‹Quetzal_78›
the password has been changed to ‹Quetzal_78› today
the password will be ‹Quetzal_78›
the password should be ‹Quetzal_78›
The new password must be ‹hunter93x!›
‹Quetzal_94› is the password for staging
‹Quetzal_94› is the root password on db1.
Password for user bob at db.example.com: ‹hunter93x!›
Password for user bob on db.example.com:5432: ‹hunter93x!›
Password (case-sensitive, 8 chars): ‹hunter93x!›
password #1: ‹hunter93x!›
Password #2 = ‹hunter93x!›
Password........: ‹hunter93x!›
Password ....... : ‹hunter93x!›
Password…: ‹hunter93x!›
password?=‹hunter27x›
PASSWORD+=‹hunter27x›
DB_PASSWORD ?= ‹hunter27x›
password%3D‹hunter27x›
x?next=%2F%3Fpassword%3D‹hunter27x›%26a%3D1
requirepass ‹hunter27x›
masterauth ‹hunter27x›
Twilio AC«md5» auth token ‹«md5»›
TWILIO_SID=AC«md5» token ‹«md5»›
SENTRY_DSN=https://‹«md5»›@o12345.ingest.sentry.io/123
https://‹«md5»›@sentry.example.org/42
mapbox: ‹sk.eyJ«43».«24»›
https://maps.example.org/js?key=‹«32»›
https://api.example.org/v1/x?a=1&key=‹«32»›&b=2
https://x.blob.core.windows.net/c?sv=2024&sig=‹«43»%3D›
https://x.blob.core.windows.net/c?sv=2024&sig=‹abc%2Fdef1234567%2Bghi890jkl%2Bmno123pqr456stu%3D›
WIFI:T:WPA;S:Home;P:‹hunter45x!›;;
WIFI:S:Home;T:WPA;P:‹hunter45x›;H:true;;
smbclient //srv/share -U bob%‹hunter45x›
zip -P ‹hunter45x› a.zip b
7z a -p‹hunter45x› a.7z b
htpasswd -b f alice ‹hunter45x›
htpasswd -bc /etc/f alice ‹hunter45x›
net user bob ‹hunter45x› /add
echo '‹hunter45x›' | sudo -S apt update
db.example.com:5432:shop:bob:‹hunter45x›
*:*:*:postgres:‹hunter45x›
mdp: ‹hunter45x›
mdp : ‹hunter45x›
parola: ‹hunter45x›
heslo: ‹hunter45x›
jelszó: ‹hunter45x›
salasana: ‹hunter45x›
adgangskode: ‹hunter45x›
passord: ‹hunter45x›
şifre: ‹hunter45x›
Şifre: ‹hunter45x›
κωδικός: ‹hunter45x›
סיסמה: ‹hunter45x›
mật khẩu: ‹hunter45x›
kata sandi: ‹hunter45x›
पासवर्ड: ‹hunter45x›
كلمة السر: ‹hunter45x›
كلمة المرور: ‹hunter45x›
รหัสผ่าน: ‹hunter45x›
lösenordet till servern är ‹hunter45x›
hasło do bazy to ‹hunter45x›
пароль для базы - ‹hunter45x›
A palavra-passe é ‹hunter45x›
palavra-passe: ‹hunter45x›
clave: ‹hunter45x›
La clave del router es ‹hunter45x›
PIN: ‹4831›
PIN: ‹483100›, valid from May
The PIN is ‹4831›
SIM PIN = ‹4831›
Zugangsdaten: admin / ‹Reiher!12›
identifiants : admin / ‹Reiher!12›
Zugangsdaten: admin:‹Reiher!12›
credenziali: admin / ‹Reiher!12›
пароль для базы — ‹hunter45x›
Пароль: ‹Kot2024!›
lösenord är ‹Sommar2024!›
Adgangskoden er ‹hunter45x›
Passordet er ‹hunter45x›
hasło to ‹hunter45x›
heslo je ‹hunter45x›
Parola este ‹hunter45x›
şifresi: ‹hunter45x›
Şifre = ‹hunter45x›
La clave es ‹hunter45x›
Clave: ‹Verano2024!›
identifiant: bob, mdp: ‹hunter45x›
the wifi password will be ‹Quetzal_78› from Monday
The passcode should be ‹Quetzal_78›
‹Quetzal_94!› is my password for the NAS
the root password was reset to ‹Quetzal_78› by Ann
The passwords have been changed to ‹Quetzal_78›
the admin password has been updated to ‹Quetzal_78›
the password has now been set to ‹Quetzal_78›
Password (for prod): ‹hunter93x!›
Password [prod]: ‹hunter93x!›
Password no. 1: ‹hunter93x!›
Password for the admin user on the staging server db.example.com: ‹hunter93x!›
Password--: ‹hunter93x!›
sudo password for bob: ‹hunter93x!›
PASSWORD ?= ‹hunter27x›
PASSWORD:=‹hunter27x›
password%3A%20‹hunter27x›
passwd%3D‹hunter27x›%26x%3D2
CONFIG SET requirepass ‹hunter27x›
unzip -P ‹hunter45x› a.zip
7za x -p‹hunter45x› a.7z
rar a -hp‹hunter45x› a.rar b
echo ‹hunter45x› | sudo -S apt update
net use X: \\\\srv\\share ‹hunter45x› /user:bob
https://‹«md5»›@o1.ingest.us.sentry.io/1
https://‹«md5»›:‹«md5»›@sentry.io/1
PIN for the alarm: ‹4831›
my PIN is ‹4831›.
PIN code: ‹4831›
Zugangsdaten für Jira: bob / ‹Reiher!12›
Login: bob / ‹Reiher!12›
username: bob password: ‹Reiher!12›
user bob, pass ‹Reiher!12›
password = "‹Horse Battery 87›"
passphrase: '‹Tasmanian Devil 5›'
The password is “‹hunter86x!›”
Passwort: „‹hunter86x!›“
Password: ‘‹hunter86x!›’
https://‹«md5»›@o1.ingest.us.sentry.io/1
password: “‹two words 86!›”
Passwort: „‹Sommer 86!›“
I changed the password from ‹OldRoot88!› to ‹NewRoot99!›
Changed the WiFi password from ‹BlueHorse42!› to ‹RedHorse43!›
The password was changed from ‹OldRoot88› to ‹NewRoot99x›
replaced the password ‹OldRoot88› with ‹NewRoot99x›
password was ‹OldRoot88›, now it is ‹NewRoot99!›
The password was ‹OldRoot88› but is now ‹NewRoot99!›
old password: ‹OldRoot88›, new: ‹NewRoot99x›
rotate password: ‹old=OldRoot88› new=‹NewRoot99x›
password '‹OldRoot88›' was replaced by '‹NewRoot99x›'
the password is ‹OldRoot88› or ‹NewRoot99x›
the password is either ‹OldRoot88› or ‹NewRoot99x›
Das Passwort wurde von ‹OldRoot88› auf ‹NewRoot99x› geändert
Passwort von ‹OldRoot88› auf ‹NewRoot99x› geändert
Das Passwort war ‹OldRoot88›, jetzt ‹NewRoot99x›
le mot de passe est passé de ‹OldRoot88› à ‹NewRoot99x›
la contraseña cambió de ‹OldRoot88› a ‹NewRoot99x›
Password rotated: ‹OldRoot88› -> ‹NewRoot99x›
passwords: ‹alice=AlicePw12›, bob=‹BobPw1234›, eve=‹EvePw5555›
passwords: alice: ‹AlicePw12›, bob: ‹BobPw1234›
passwords: ‹AlicePw12› and ‹BobPw1234›
client-key-data: ‹«48»›
https://‹«sha1»›@github.com/x/y.git
set the env var OPENAI_API_KEY to ‹abcd1234efgh5678›
The password was ‹OldRoot88›, now it is gone
password: ‹OldRoot88›, now go to build2024x
password: ‹OldRoot88› or ask Bob
password: ‹OldRoot88›, user: admin2024
login with password ‹OldRoot88› to server12
changed the password from ‹OldRoot88› to something else
The DB password is now ‹NewRoot99x› instead of ‹OldRoot88›
The password is ‹NewRoot99x› (was ‹OldRoot88›)
The password is ‹NewRoot99x›, previously ‹OldRoot88›
new password: ‹NewRoot99x›, old: ‹OldRoot88›
altes Passwort: ‹OldRoot88›, neues: ‹NewRoot99x›
The old password was ‹OldRoot88›. The new one is ‹NewRoot99x›
The password is ‹hunter22x›. Now build2024 is out
""".strip("\n").split("\n")

# Talk about secrets, and what stands near a word for one without being one.
TALK = """
the token is expired
The token is invalid or revoked.
The auth token is missing
The token expired yesterday
the access token is refreshed every 3600 seconds
auth token is stored in ~/.config/app/token.json
Use the auth token from the vault
The auth key is kept in 1Password
Pass the salt
pass the salt and 2 spoons of pepper
Pass 2 of the build failed
The first pass found 3 errors
secret key is read from the environment
secret key is rotated every 90 days
secret key = settings.SECRET_KEY
The Django secret key is in the .env file
The secret key is 50 characters long
secret to a good sauce: butter
the key is under the mat
The key is in the blue box, second drawer
the key is 4 mm wide
The key is to ask early.
Key findings: 3 of 10 queries are slow
key: the column that both tables share
The primary key is order_id2
The cache key is user:42:profile
The sort key is created_at
the house key is with Anna2
git commit «sha1» fixes the token bug
The token parser broke in «sha1»
Token handling was fixed by commit «sha1»
The password form came with «sha1»
See «uuid» for the password policy
The user who reset the password has the id «uuid»
The document is 1aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789 and needs no password
Document id 1aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789ab
The page id of "Secrets" is «md5»
The ticket about the token is OPS-1182
the token ticket is SEC-2024-118
The secret is stored at secret/data/prod/db
secret: see vault path kv/prod/billing
password: see 1Password
password: ask Ann
Password: in the vault
Password: see the wiki page 12
Password: in drawer 3 of the office
password: rotated by cron at 02:00
password: at least 12 characters
passphrase: minimum six words
passphrase: required for keys made after 2020
passphrase: six random words from the list
password: the one from last year
password: same as 2023
password: not needed on the VPN
password: your company login
The password is on a sticky note
The password is rotated every 30 days
The password is longer than 12 characters
The password was leaked in 2021
password reset takes 2 days
password rotation: every 90 days
password manager: 1Password 8
The password manager is 1Password
password hashes use argon2id with 64 MB
The password length is 12
The password field is called pwd2
Store passwords in /etc/app/secrets.yaml
token: /var/run/secrets/token
the api key is in config/keys.yaml
api key is required
The api key is the same for staging and production
api keys are 32 characters long
The api key page is https://example.org/account/keys
The API key is «aws-id», which is the sample of the documentation.
api key: YOUR_API_KEY_HERE
sample key: sk_test_...
The token is worth 0.0042 USD
Each token costs 0.000002 dollars
token budget is 128000
a token is about 4 characters
The model writes 45 tokens per second
Das Passwort ist abgelaufen
Das Passwort ist bekannt
Das Passwort liegt im Tresor, Fach 12
Das Token ist seit Montag ungültig
Der Schlüssel liegt unter der Matte
Das Passwort steht auf Seite 12 im Handbuch
Passwort: siehe Tresor
Passwort: steht im Wiki auf Seite 12
Passwort: bei Anna erfragen
Passwort: liegt bei Anna im Büro
Le mot de passe est périmé depuis 2023
Mot de passe : voir le coffre, tiroir 12
Mot de passe : demander à Anne
Le token est expiré depuis 3 jours
La clé est sous le paillasson
Le secret est de laisser la pâte reposer 2 heures
La contraseña está en la caja fuerte
Contraseña: preguntar a Ana
El token ha caducado
La password è nel cassetto 12
Il token è scaduto
credentials are in the vault
The credentials expire after 12 hours
auth is handled by the gateway
auth: OAuth2 with PKCE
The auth service is auth-service-7d4b9c6f5d-x2x9k
secret: ServiceAccount2
The secret name is prod-db-credentials-v2
The reset of the password (OPS-1182) is done
password OPS-1182 is open
See password-policy-2024.md for more
the password page password2.html was moved
Password module (auth_v2.py) is slow
password check in auth_v2.py:120
login with password on host web-01.example.org
password on web-01 was changed
password for web01: ask Ann
password change on 2024-05-31
password v2.3.1 is out
The token at line 120 is wrong
password field (id=pw1) is hidden
The password of user bob42 expires
password from user42 was reset
password to access web01
password as sha512crypt
token t1 and token t2
password (at least 8chars)
Password: 8-64 characters
password: min. 8 characters, max. 64
password => 12+ characters
The password policy was updated to 12 characters
updated the password policy to PCI4.0
set password expiry to 90d
we set the token limit to 4096
changed token budget from 2048 to 4096
The secret key is base64-encoded
the secret was created by terraform2
API key version 2 is used
the api key is a UUID
api key is stored as API_KEY_V2
auth is OIDC via Keycloak26
auth: JWT (RS256)
auth token lifetime is 3600s
const password = raw
    password = raw
password: bcrypt cost 12
password: scrypt, N=16384
The password is Base64 of the user's id
password is 'required'
My password is weak and old
pass: 12 of 14 tests
The pass is closed in winter 2024
The Gotthard pass is 2106 m high
boarding pass: gate B42, seat 14A
Boarding pass is in the Wallet app
the ski pass costs 62 EUR
pass: 3rd
key: Ctrl+K Ctrl+S
The key is C# minor
the piano key is out of tune
The key of D2 is missing
key is object_id_7
Key: 2024-Q3 revenue
house key: with neighbour at number 42
the key code for the lockbox is in 1Password
The token ring network from 1995
Token: ERC-20
token of appreciation: 2 bottles of wine
Secret Santa budget is 20 EUR
our secret ingredient is MSG
top-secret project is Project X2
credential: AWS-Certified-2024
Credentials: PhD, MIT 2004
das Passwort wird am 3.5. geändert
Das Passwort ist in Bitwarden
Das Passwort ist das alte von 2023
Passwort: das alte von 2023
Passwort: wie immer
Passwort: Geburtstag der Katze
Mot de passe : le même que 2023
Mot de passe : celui de la banque
Contraseña: la misma de siempre
password: the usual one
password: changes every Monday
password: stored under office router entry
password: lives in team keychain
password: known by ops team
password: only Ann knows it
password: written on router bottom
password: printed on router label
password: printed under the router
password: blank by default
passphrase: found with key file
passphrase: four random dictionary words
Password: Ann has it
Password: contact IT support desk
Password: check router sticker underneath
Password: email helpdesk for access
secret: shared between services
token: passed via header
token: bearer token in Authorization header
token: read from environment
key: alphabetical order
Password: 2 attempts left
Password: 3 failed attempts since 2024
password: expires 2024-12-31
password: expired 2023
password: last changed 2023
Password: updated May 2024
password: rotation due March 2025
password: length between 8 and 64
password: SHA256 hash
Password: OAuth2 login only
the token was issued for 15 minutes
The token contains the user's id
A token must not be logged
Is the token still valid?
Which token does CI use?
The secret of her success is patience
Keep it secret: nobody knows but Ann
The secret meeting is at 10:30
secret recipe: flour, butter, 2 eggs
The key takeaway is that tests save time
key result: 99.9 % uptime in Q3
The key was found on 2024-05-31
keys are under the mat
The key for the bike lock is on the hook
Auth is broken since v2.3.1
auth flow: login, consent, redirect
auth middleware is in auth_v2.py:120
The auth bug is fixed in 4f3a9c2
token refresh fails with HTTP 401
token refresh bug is tracked in issue 4821
The password reset mail is sent after 30 s
password dialog is 400 px wide
Password strength is measured with zxcvbn
The password rule is 12 characters, 1 digit
The password for the demo is public
The password file is /etc/shadow
password length must be 12 to 64
The user forgot the password twice
password prompt appears at boot
passwords expire every 90 days
Password is case sensitive!
The password is too short
The password is the user's birthday
The password is stored in the keychain of Ann's MacBook
password in plain text is bad
Pass the butter, please
The pass rate is 98.5 %
Pass rate: 98.5 %
The bus pass is valid until 2025-01-31
pass it to build_index2()
Pass --verbose to see more
pass: all 240 tests
the Khyber pass is long
Session key: rotated hourly
api key: needed for the weather page
API key: see README.md
secret: none
Credentials: ask the platform team
The credential helper is osxkeychain
credential type: oauth2
Das Passwort muss geändert werden
Das Passwort wurde am 3. Mai geändert
Das neue Passwort ist länger als 12 Zeichen
Der Token läuft in 15 Minuten ab
Das Geheimnis ist gut gehütet
Le mot de passe doit être changé
Le mot de passe est trop court
La clé du succès est la patience
La contraseña es demasiado corta
La password deve essere cambiata
A senha expirou ontem
the password is required
Password policy: at least 12 characters
the password has been reset
the password has been reset to the default
the password has been changed by root on 2024-05-31
senha: obrigatória
parola d'ordine: semplicità
parola d'ordine: pazienza
"password: required", said the form
password: "Choose a long one"
password: "at least 8 characters"
password is 'case sensitive'
password is "weak" by the scanner
passphrase is "optional"
The psk is stored in /etc/wpa
psk: see the router label
psk=$PSK
password: ''
password: 'don''t know'
the passphrase is correct
the passphrase is known to Ann
the passphrase is printed under the router
the password is wrong again
the password is correct now
The passphrase is four random words
the password will be reset tomorrow
the password will be at least 12 characters long
the password should be long
the password should be rotated every 90 days
the password should be 12 characters
the password must be strong
the password will be sent by mail
OPS-1182 is the password ticket
bcrypt is the password hash
Login is the password page
hunter2 is the password everybody knows from the joke
V2 is the password form for the site
Password for user bob:
Password for user bob at db.example.com: required
Password for user bob at db.example.com: see vault
Password (8 chars): required
Password (case-sensitive, 8 chars): optional
Password (at least 8 characters, 1 digit)
password #1: expired
password #1 was leaked
Password........: required
Password ........ 12
password?
password?=$(PW)
PASSWORD+=$X
password += char
requirepass is set
# requirepass foobared
The requirepass directive sets a password
masterauth <password>
Twilio account AC«md5» was closed
Twilio auth token is rotated
AC«md5» is the account
https://example.org/«md5»
https://user@sentry.example.org/42
ssh://«sha1»@host is nonsense
https://public@sentry.example.org/1
mapbox sk. tokens are secret
sk.eyJ is the prefix
https://example.org/list?key=name&page=2
https://example.org/x?key=user_settings_page
https://shop.example.org/i?key=products/2024/05/31/img.jpg
https://x.example.org/c?sig=valid&x=1
WIFI:T:nopass;S:Guest;;
WIFI: T and S are fields
smbclient -U bob //srv/share
smbclient -U bob%$PW //srv/share
zip -r a.zip folder -P "$PW"
zip -r backup2024.zip docs
7z a -p"$PW" a.7z b
7z a -mx9 a.7z b
7z x a.7z -oout2
htpasswd -c /etc/f alice
htpasswd -b f alice "$PW"
net user bob /active:yes
net user bob * /add
net user
echo "$PW" | sudo -S apt update
echo 'deb http://x y main' | sudo tee /etc/apt/x
localhost:5432:up
db.example.com:5432:shop:bob
00:1A:2B:3C:4D:5E
2024-05-31:18:00:00:12
test_a.py:12:3:E501:line
host:port:database:user:password
mdp : oublié
mdp: voir le coffre
parola: dimenticata
parola: vedi sotto
parola chiave: ricerca2024
heslo: povinné
jelszó: kötelező
salasana: pakollinen
salasana: vaaditaan
adgangskode: påkrævet
passord: påkrevd
passord: se hvelvet
şifre: zorunlu
şifre: gerekli
κωδικός: υποχρεωτικός
κωδικός: 403
סיסמה: חובה
mật khẩu: bắt buộc
kata sandi: wajib
पासवर्ड: आवश्यक
كلمة السر: مطلوبة
รหัสผ่าน: จำเป็น
lösenordet till servern är bytt
lösenordet är för kort
hasło do bazy to tajemnica
hasło do bazy to problem
пароль для базы - обязателен
пароль для базы - в сейфе
A palavra-passe é obrigatória
palavra-passe: obrigatória
clave: obligatoria
La clave del éxito es la paciencia
La clave es escuchar
clave: 2024
clave primaria: id_cliente2
palabra clave: seguridad2024
PIN: required
PIN: 4 digits
PIN: see card
The PIN is 4 digits long
The PIN is on page 4831
pin 13 is high
pin: 13
GPIO pin: 4
Pin: D13
GPIO pin is 2013
PIN: ****
pin code for the lockbox is in 1Password
spin: 4831
The pinout: 1234
Zugangsdaten: im Tresor
Zugangsdaten: siehe Wiki / Seite 12
Zugangsdaten: per Mail / Telefon
identifiants : voir le coffre
identifiants : email / mot de passe
Zugangsdaten für Web / Mail2 liegen im Tresor
The PIN has 4 digits: 2 even, 2 odd
The passphrase is the name of our first dog
The password is whatever the installer printed
the passphrase is too weak for production use
The password is handled by the identity provider
The passphrase is entered once per boot
The password is random and rotated nightly
The password is unique per tenant
The password will be unique per tenant
The password should be random
The password must be changed
The password must be entered twice
the password should be in the vault
the password has been rotated
the password has been set to expire in 90 days
the password has been reset to the default one
the password has been updated to meet PCI4
The token will be refreshed
The token must be valid
the API key should be scoped
The secret will be rotated by terraform
the key will be order_id2
SSO is the password replacement for all
OAuth2 is the password alternative
Password (required): see below
Password (min 8 chars, 1 digit): required
Password (optional):
Password ... see vault
Password...
password for user bob at db.example.com:5432
password for db.example.com:5432 is in the vault
Password for the staging box: ask Ann
sudo password for bob:
[sudo] password for bob:
password += salt
password ?= os.environ
parola: la stessa di prima
la parola è d'argento
parola del giorno: gatto
Das Heslo-Projekt: 2 Leute
clave: ver el almacén
La clave foránea es cliente_id2
mdp: à demander
PIN: changed in May
PIN 13 and 14 are UART
PIN=13
PIN 2024 is on the board
zip -9 a.zip b -x "*.Po"
zip code: 10115
zip -r site.zip public -P
7z a -ttar a.tar b
7z x a.7z -y -p
rar a -r a.rar b
echo "deb http://x y main" | sudo tee /etc/x
echo 3 | sudo tee /proc/sys/vm/drop_caches
net user accounts are local
htpasswd -c -B users alice
smbclient -L srv -U bob
WIFI:S:Guest;T:nopass;P:;;
WiFi: password at the desk
http://0123456789abcdef0123456789abcdef.example.org/a
Login: email / password
Login: SSO / OAuth2
Zugangsdaten: bei Anna / Raum 12
The alarm code is 4831
changed the password policy from 8 to 12 characters
changed the password rotation from 30 to 90 days
The password was changed from weak to strong
copied the password from vault2 to server12
Password changed: 2024-05-31 -> 2024-06-30
set the env var API_KEY to the new one
https://0123456789abcdef0123456789abcdef01234567.example.org/a@b
client-certificate-data: a public one
""".strip("\n").split("\n")

# The same on several lines: tables, blocks of YAML, a name on a line of its own.
GIVEN_BELOW = """
password: |↵  ‹two words 86!›↵port: 1
password: |↵    ‹correct horse battery staple›↵  port: 1
passphrase: >-↵  ‹velvet lemon harbour quartz›
| user | password |↵| --- | --- |↵| bob | ‹Bandicoot!2› |
| user | password |↵|---|---|↵| bob | ‹hunter38x!› |↵| ann | ‹Quokka_77› |
| Password | Host |↵| :-- | --- |↵| ‹hunter38x!› | db1 |
user,password↵admin,‹Bandicoot!2›
name,password,role↵bob,‹Bandicoot!2›,admin↵ann,‹hunter38x!›,user
user;password↵admin;‹Bandicoot!2›
Password↵‹hunter96x!›
Username↵bob↵Password↵‹hunter96x!›
| Site | User | Password | |↵|-|-|-|-|↵| Jira | bob | ‹Xy7!kLm2› | |↵| Wiki | a | ‹Zebra_Moon9› | |
Service	Password↵jira	‹Bandicoot!2›↵wiki	‹hunter38x!›
"user","password"↵"admin","‹Bandi,coot!2›"
host,user,db_password↵db1,app,‹Bandicoot!2›
| Benutzer | Passwort |↵| --- | --- |↵| bob | ‹Sommer2024!› |
| env | API key |↵| --- | --- |↵| prod | ‹«32»› |
| WiFi network | Password |↵|--|--|↵| Home | ‹Blue Sky 2024!› |
passphrase: |-↵  ‹velvet horse↵  battery staple›↵x: 1
""".strip("\n").split("\n")
TALK_BELOW = """
| field | password |↵| --- | --- |↵| required | yes |
| field | password |↵| --- | --- |↵| bob | no |↵| ann | yes |
| user | password |↵| --- | --- |↵| bob | expired |↵| ann | see vault |
| role | password policy |↵| --- | --- |↵| admin | 16 characters |
| system | password length |↵| --- | --- |↵| web | 12+ |
| user | password | last login |↵| --- | --- | --- |↵| bob | rotated | 2024-05-31 |
| user | password changed |↵| --- | --- |↵| bob | 2024-05-31 |
| token | meaning |↵| --- | --- |↵| EOS | end of text |
user,password↵admin,required
user,password,role↵admin,yes,owner
name,type↵password,string
Enter user, password↵then press OK
Type the name, password, and code2FA↵Then log in, wait, go2
Ask for user,password↵Done.
password: |↵  Use a long one.↵  At least 12.
password: |↵  see the vault
passphrase: >-↵  required for the backup
Password↵required
Password↵Enter your password
Username↵Password↵Remember me
Password↵Confirm password
Password↵-----------
| Name | Password required | Port |↵|---|---|---|↵| db1 | yes | 5432 |
| Field | Type | Password |↵|---|---|---|↵| pw1 | string | hashed with argon2id |
| Account | Password |↵|---|---|↵| root | in 1Password |↵| bob | OPS-1182 |↵| ann | 2024-05-31 |
| Version | Token |↵|---|---|↵| v2.3.1 | JWT (RS256) |
id,token,count↵1,hello,23↵2,world2,4
key,value↵theme,dark2024
| key | action |↵|---|---|↵| Ctrl+K | cut |↵| F12 | tools |
user,pass,fail↵suite1,120,3
| suite | pass | fail |↵| --- | --- | --- |↵| a1b2c3 | 120 | 3 |
's3v4': SigV4Auth,↵'s3v4a': CrtS3SigV4AsymAuth,
("GET", "/v1/token", 400),↵("GET", "/v1/recall2?scope=moon", 400),
""".strip("\n").split("\n")

DRAWS: dict[str, Callable[[], str]] = {
    "sha256": lambda: hexadecimal(64),
    "sha1": lambda: hexadecimal(40),
    "md5": lambda: hexadecimal(32),
    "uuid": uuid,
    "base64": lambda: encoded(150),
    "ssh": lambda: "AAAAC3NzaC1lZDI1NTE5AAAAI" + alnum(43),
    "24": lambda: alnum(24),
    "32": lambda: alnum(32),
    "48": lambda: encoded(36),
    "letters": lambda: some(string.ascii_letters, 32),
    "license": lambda: "-".join(alnum(5).upper() for _ in range(5)),
    "43": lambda: alnum(43),
    "xs": lambda: "x" * 40,
    "dashes": lambda: DASHES,
    "three": lambda: '"' * 3,
    "nbsp": lambda: "\u00a0",
    "narrow": lambda: "\u202f",
    "thin": lambda: "\u2009",
    "wide": lambda: "\u3000",
    "aws-id": lambda: "AKIA" + "IOSFODNN7" + "EXAMPLE",
    "aws-secret": lambda: "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY",
}


def drawn(text: str) -> str:
    text = re.sub("«(.+?)»", lambda found: DRAWS[found[1]](), text)
    return text.replace("↵", "\n")


def cases() -> Iterator[tuple[str, str, str]]:
    """Kind, secret and the text around it, of every form in every place."""
    for (kind, make), around in itertools.product(FORMS, AROUND):
        yield kind, make(), around.replace("↵", "\n")
    for kind, make, around in NAMED:
        yield kind, make(), around.replace("↵", "\n")


# Secrets


def test_every_secret_is_replaced_and_all_else_stays_as_it_is() -> None:
    for kind, secret, around in cases():
        expected = around.replace("§", f"[redacted: {kind}]"), [kind]
        assert redact(around.replace("§", secret)) == expected, (kind, secret, around)


def test_every_form_in_the_file_of_credentials_is_looked_for() -> None:
    blocks = [block for block in asset("credentials.txt").split("\n\n") if "\n    " in block]
    forms = [form for _, form in credential_forms()[1]]
    assert len(forms) == len(blocks) > 50
    assert all(form.sub("", "") == "" for form in forms)  # each compiles


def test_secrets_are_found_in_a_checkout_with_the_line_ends_of_windows(tmp_path: Path) -> None:
    top = Path(__file__).resolve().parents[1]
    code = ("sediment.py", "sediment_ext/__init__.py", "sediment_ext/credentials.py")
    files = ("credentials.txt", "function_words.json", "secrets.txt")
    for name in (*code, *(f"assets/{file}" for file in files)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((top / name).read_bytes().replace(b"\n", b"\r\n"))
    script = "import sediment, sys; print(sediment.redact(sys.argv[1])[0])"
    command = [sys.executable, "-c", script, "ghp_" + alnum()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[redacted: github token]\n"


def test_the_corpus_is_as_wide_as_it_should_be() -> None:
    assert len({kind for kind, _, _ in cases()}) >= 45
    assert len(list(cases())) >= 850
    assert len(set(HARMLESS)) >= 600
    assert len({*GIVEN, *GIVEN_BELOW}) >= 215
    assert len({*TALK, *TALK_BELOW}) >= 420


@pytest.mark.parametrize("around", ["{}", "Noted: {} That is all.", "{}\nand more\n", "- `{}`"])
def test_what_only_looks_like_a_secret_is_left_alone(around: str) -> None:
    for text in map(drawn, HARMLESS):
        assert redact(around.replace("{}", text)) == (around.replace("{}", text), []), text


@pytest.mark.parametrize("around", ["{}", "Noted: {}", "{}\nand more\n", "- {}"])
def test_what_a_name_for_a_secret_is_given_goes(around: str) -> None:
    texts = [around.format(drawn(text)) for text in GIVEN]
    assert [text for text in texts if not loses_what_is_marked(text)] == []


def test_what_a_name_for_a_secret_is_given_below_it_goes() -> None:
    texts = list(map(drawn, GIVEN_BELOW))
    texts += [f"The old box:\n\n{text}\n\nand more\n".replace("\n", "\r\n") for text in texts]
    assert [text for text in texts if not loses_what_is_marked(text)] == []


def loses_what_is_marked(text: str) -> bool:
    left, kinds = redact(re.sub("[‹›]", "", text))
    expected, count = re.subn("(?s)‹.*?›", "…", text)
    return (re.sub(r"\[redacted: [a-z ]+\]", "…", left), len(kinds)) == (expected, count)


@pytest.mark.parametrize("around", ["{}", "Noted: {} That is all.", "{}\nand more\n", "- `{}`"])
def test_talk_about_secrets_stays_as_it_is(around: str) -> None:
    texts = [around.format(drawn(text)) for text in TALK]
    assert [text for text in texts if redact(text) != (text, [])] == []


@pytest.mark.parametrize("around", ["{}", "The old box:\n\n{}\n\nand more\n"])
def test_talk_about_secrets_on_several_lines_stays_as_it_is(around: str) -> None:
    texts = [around.format(drawn(text)) for text in TALK_BELOW]
    assert [text for text in texts if redact(text) != (text, [])] == []


def test_a_secret_goes_that_another_had_hidden() -> None:
    """The form of a cookie finds the last of a header; the one before it once that is a mark."""
    text, kinds = redact(f"Cookie: theme=dark; sid={hexadecimal()}; sess={hexadecimal()}")
    mark = "[redacted: session cookie]"
    assert (text, kinds) == (f"Cookie: theme=dark; sid={mark}; sess={mark}", [mark[11:-1]] * 2)


def test_a_secret_goes_that_stands_in_the_path_of_another() -> None:
    slack = f"xoxb-{digits(12)}-{digits(13)}-{alnum(24)}"
    text, kinds = redact(f"token={slack}/password: {made()}/")
    assert text == "token=[redacted: slack token]/password: [redacted: password]"
    assert kinds == ["slack token", "password"]


@pytest.mark.parametrize("behind", [":{}", "-{}", " {}", "={}"])
def test_nothing_is_looked_for_in_a_mark(behind: str) -> None:
    id, key = "AKIA" + some(string.ascii_uppercase, 16), alnum(19) + "/" + alnum(20)
    text, kinds = redact(f"{id} {key}" + behind.format(alnum(20)))
    assert text.startswith("[redacted: aws access key] [redacted: aws secret key]")
    assert re.sub(r"\[redacted: [a-z ]+\]", "", text).count("redacted") == 0
    assert len(kinds) == text.count("[redacted: ")


def test_what_a_machine_made_is_found_however_it_falls() -> None:
    """It is random, so one draw proves little."""
    named = [case for case in NAMED if case[1] not in (human, word, phrase)] * 50
    found = sum(redact(around.replace("§", make()))[1] == [kind] for kind, make, around in named)
    assert found >= 0.995 * len(named)


def test_a_block_of_yaml_that_is_a_secret_goes_to_its_end() -> None:
    lines = [alnum(), alnum(), alnum()]
    text = "\n    ".join(["api_key: >-", *lines]) + "\n  port: 1\n"
    assert redact(f"a:\n  {text}")[0] == "a:\n  api_key: >-\n    [redacted: key]\n  port: 1\n"


@pytest.mark.parametrize(
    "text",
    [
        "## Password\n\n{}",
        "# Admin password\n{}\n\n# More\n",
        "Password:\n{} is what the lab has\n",
        "password: {} (until May)",
        'curl -H "Cookie: sessionid={}" https://x.example',
        "Cookie: theme=dark; PHPSESSID={}; lang=en",
        "Set-Cookie: auth_token={}; Path=/; HttpOnly",
    ],
)
def test_what_stands_below_its_heading_or_in_a_cookie_goes(text: str) -> None:
    secret = alnum(3) + "b4dR" + alnum(12) + "7x"
    assert secret not in redact(text.format(secret))[0]


@pytest.mark.parametrize(
    "text",
    [
        "## Password\n\nUse twelve characters.\n",
        "## Password\n\nargon2id\n",
        "## Reset the password\n\nsee-docs-2024\n",
        "We looked for the token\n4f2aB9cQ71xLm3Zp\n",
        "Password:\nargon2id is what we use\n",
        "Cookie: the session cookie is HttpOnly since 2024",
        "Cookie: sessionid=<value>; theme=dark",
        "Cookie: consent=2024-05-01T10:00:00Z",
    ],
)
def test_what_stands_below_a_heading_or_in_a_cookie_and_is_no_secret_stays(text: str) -> None:
    assert redact(text) == (text, [])


def test_kinds_come_in_the_order_of_the_text() -> None:
    token, key = "ghp_" + alnum(36), "AKIA" + some(string.ascii_uppercase, 16)
    text, kinds = redact(f"password={human()} <private>a</private> {token} and {key}, {token}")
    assert kinds == ["password", "private", "github token", "aws access key", "github token"]
    assert text == (
        "password=[redacted: password] [private] [redacted: github token]"
        " and [redacted: aws access key], [redacted: github token]"
    )


@pytest.mark.parametrize(
    "before", ["used password ", "used the ", "tried ", "entered the ", "typed the ", "as ada ("]
)
def test_a_password_that_was_used_is_one(before: str) -> None:
    before += "password " * ("password" not in before)
    assert redact(f"I {before}{human()}")[0] == f"I {before}[redacted: password]"


@pytest.mark.parametrize("make", [made, lambda: "tr0ub4dor&3x", phrase, lambda: "s3cret with gaps"])
def test_what_is_a_secret_in_one_place_is_one_in_all(make: Callable[[], str]) -> None:
    secret = make()
    text = 'Try §, or "§!". The password: "§". It was §§.'
    expected = text.replace("§", "[redacted: password]")
    assert redact(text.replace("§", secret)) == (expected, ["password"] * 5)


@pytest.mark.parametrize("part", ["edacted:", "assword]"])
def test_a_secret_that_is_a_part_of_a_mark_goes_and_the_mark_stays(part: str) -> None:
    expected = 'password = "[redacted: password]", [redacted: password]'
    assert redact(f'password = "{part}", {part}') == (expected, ["password"] * 2)


@pytest.mark.parametrize("word", ["swordfish", "kitten7", "opensesame", "lemon tart"])
def test_a_secret_that_is_a_word_or_short_goes_where_it_is_given_only(word: str) -> None:
    assert redact(f'password: "{word}"\n{word}!') == (
        f'password: "[redacted: password]"\n{word}!',
        ["password"],
    )


@pytest.mark.parametrize("mark", ["\u200b", "\u2060", "\ufeff", "\u00ad"])
def test_what_is_not_shown_hides_no_secret(mark: str) -> None:
    token = "ghp_" + alnum(36)
    text = f"The token is {token[:9]}{mark}{token[9:]}, pass{mark}word: {human()}."
    told = "The token is [redacted: github token], password: [redacted: password]."
    assert redact(text) == (told, ["github token", "password"])
    assert redact(f"A{mark}b: {token}")[0] == f"A{mark}b: [redacted: github token]"
    assert redact(f"The{mark} token is new.") == (f"The{mark} token is new.", [])


def test_a_secret_key_close_behind_its_id_is_one() -> None:
    id, secret = "AKIA" + some(string.ascii_uppercase, 16), alnum(20) + "/" + alnum(19)
    text, kinds = redact(f"AWS: {id}, with {secret} (since commit {hexadecimal(40)})")
    assert kinds == ["aws access key", "aws secret key"]
    assert secret not in text
    text = f"{id} was last used in commit {hexadecimal(40)}"
    assert redact(text)[1] == ["aws access key"]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\\n", "\n    ", '\\n"\n  + "', "\n> "])
def test_a_private_key_without_its_end_is_redacted_as_far_as_it_goes(newline: str) -> None:
    key = pem("RSA PRIVATE KEY", ends=False, newline=newline)
    text, kinds = redact(f"It begins so:\n{key}\nAnd then the log was cut.")
    assert kinds == ["private key"]
    assert text == "It begins so:\n[redacted: private key]\nAnd then the log was cut."


def test_an_encrypted_private_key_goes_with_its_headers() -> None:
    key = pem("RSA PRIVATE KEY", ends=False)
    head, body = key.split("\n", 1)
    headers = f"Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,{hexadecimal(32).upper()}\n\n"
    assert redact(f"{head}\n{headers}{body}") == ("[redacted: private key]", ["private key"])


def test_a_putty_key_loses_its_private_lines_only() -> None:
    head = "PuTTY-User-Key-File-2: ssh-rsa\nComment: bob@laptop\nPrivate-Lines: 5\n"
    text, kinds = redact(f"{head}{putty()}Private-MAC: {hexadecimal(40)}\n")
    assert text == f"{head}[redacted: private key]\nPrivate-MAC: [redacted: private key]\n"
    assert kinds == ["private key"] * 2


def test_the_key_of_a_service_account_is_taken_out_of_its_file() -> None:
    key = pem("PRIVATE KEY") + "\n"
    account = {"type": "service_account", "project_id": "demo", "private_key": key}
    text, kinds = redact(json.dumps(account, indent=2))
    assert json.loads(text) == {**account, "private_key": "[redacted: private key]"}
    assert kinds == ["private key"]


def test_a_token_within_a_longer_word_is_none() -> None:
    for kind, make in FORMS:
        if kind in ("aws access key", "npm token", "openai key", "twilio key"):
            assert redact(f"x{make()}")[1] == []


# Private parts


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a <private>b</private> c", "a [private] c"),
        ("a <PRIVATE>b</Private> c", "a [private] c"),
        ("a <private>b\nc\n</private>\nd", "a [private]\nd"),
        ("a <private>b", "a [private]"),
        ("<private>", "[private]"),
        ("a <private>b</private> c <private>d</private>", "a [private] c [private]"),
        ("a <private>b<private>c</private>d</private> e", "a [private] e"),
        ("a <private>b<private>c</private>d", "a [private]"),
        ("a <private>b</private x>c</private> d", "a [private] d"),
        ("a <private>b</private", "a [private]"),
        ("a <private >b</private > c", "a [private] c"),
        ("a < private>b</ private> c", "a [private] c"),
        ("a <private\n>b</private\n> c", "a [private] c"),
        ('a <private reason="x">b</private> c', "a [private] c"),
        ("a <private/>b", "a [private]"),
        ("a <priv<private>b</private>ate>c", "a <priv[private]ate>c"),
        ("a</private> b", "a</private> b"),
        ("a <private>b</private></private> c", "a [private]</private> c"),
        ("a <private>[private]</private> c", "a [private] c"),
        ("a <privateer>b</privateer> c", "a <privateer>b</privateer> c"),
        ("a <private-key>b</private-key> c", "a <private-key>b</private-key> c"),
        ("private: <b>yes</b>", "private: <b>yes</b>"),
        ("/*< private >*/ int x; /*< public >*/", "/*< private >*/ int x; /*< public >*/"),
    ],
)
def test_private_parts_are_hidden_whatever_the_markup(text: str, left: str) -> None:
    found, kinds = redact(text)
    assert (found, len(kinds)) == (left, left.count("[private]"))
    assert set(kinds) <= {"private", UNCLOSED}


def test_a_private_part_hides_the_secrets_in_it_and_secrets_hide_no_markup() -> None:
    assert redact(f"<private>password={human()}</private>.") == ("[private].", ["private"])
    key = pem("RSA PRIVATE KEY")
    for text in (f"<private>{key}</private>", f"password=<private>{key}</private>"):
        assert key[40:60] not in redact(text)[0]
    broken = key[:200] + "<private>here</private>" + key[200:]
    assert redact(f"see {broken}, Bob") == ("see [redacted: private key], Bob", ["private key"])


# Any text

anything = st.text(st.characters())  # lone surrogates and NUL included
PIECES = """\
password|secret|token|api_key|key|pwd|PASSWORD=|AUTH|user |login |-----BEGIN |PRIVATE KEY-----
-----END |Authorization: |Bearer |curl -u |://|<private>|</private>|[private]|[redacted: password]
 = |: |:=|==| is | was | for the | to |value=|\\n|%3D|${X}|hunter2|letmein|x7Kq9|your|example|é
a1B2c3D4e5F6g7H8i9|0123456789abcdef"""
pieces = st.sampled_from(
    [*"=:,;&()[]{}<>/.@-|*%_$#!?\"'`\\ \n", *PIECES.replace("\n", "|").split("|")]
)
made_up = st.builds(lambda make: make[1](), st.sampled_from(FORMS))
mixtures = st.lists(st.one_of(pieces, pieces, made_up, anything)).map("".join)


@given(st.one_of(anything, mixtures, mixtures.map(lambda text: text.replace("]", "] "))))
def test_what_was_redacted_once_stays_as_it_is(text: str) -> None:
    redacted, kinds = redact(text)
    assert redact(redacted) == (redacted, [])
    assert bool(kinds) == (redacted != text)
    assert redacted.count("[redacted: ") + redacted.count("[private]") >= len(kinds)


@given(st.text(st.characters(exclude_characters="=:/@<>()[]'\"`-_. ,|\\~")))
def test_a_text_with_nothing_that_points_to_a_secret_is_not_changed(text: str) -> None:
    assert redact(text) == (text, [])


@given(anything, anything)
def test_a_token_is_found_between_any_two_texts(before: str, after: str) -> None:
    token = "github_pat_" + alnum(40)
    assert token not in redact(f"{before} {token} {after}")[0]


# Time

MANY = 50_000  # characters: time that grows with their square is many seconds
ENDLESS = {
    "one letter": "a",
    "equals signs": "=",
    "dashes": "-",
    "quotes": '"',
    "backslashes": "password='\\",
    "values in quotes": "password='!",
    "beginnings of keys": f"{DASHES}BEGIN ",
    "keys without an end": f"{DASHES}BEGIN PRIVATE KEY{DASHES}\n{'A' * 64}",
    "names": "password",
    "names and signs": "password=",
    "names, signs and quotes": "token='",
    "calls": "token=f(",
    "names within values": "=p:secret",
    "calls within calls": "key=(",
    "sentences": "password for the ",
    "values": "api_key: x ",
    "private": "<private>",
    "private, open": "<private ",
    "private, closed": "</private>",
    "headers of tokens": "eyJ-",
    "parts of tokens": "eyJaaaaaaaaaaaa.",
    "addresses": "://a:",
    "addresses within addresses": "auth=http://x?",
    "prefixes": "sk-",
    "access keys": "AKIA" + "Q" * 16 + " ",
    "commands": "mysql -u ",
    "headers": "Authorization: Bearer ",
    "letters that grow": "İ",
    "headings": "# Password\n\n",
    "cookies": "cookie: a=b; ",
    "phrases": "password: ab cd ef ",
    "words behind a name": "password a b c d e f g h ",
    "marks": "[redacted: key] ",
    "colons": "::::::",
    "assignments": "a=",
    "names and blanks": "password" + " " * 500,
    "names and dots": "password...... ",
    "heads of tables": "password,",
    "rows of a table": "user,password\n",
    "quotes in a table": 'password,""',
    "names before words": "password for a.b.c.d.e.f ",
    "quotes in quotes": "password: 'a''b",
    "commands with passwords": "zip 7z htpasswd -b a net user a echo a ",
    "codes on walls": "WIFI:S:",
    "full width": "\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44\uff1a",
}


@pytest.mark.parametrize("piece", ENDLESS.values(), ids=ENDLESS)
def test_no_text_takes_long(piece: str) -> None:
    with in_one_look():
        redact(piece * (MANY // len(piece)))


def test_random_characters_do_not_take_long() -> None:
    with in_one_look():
        redact(encoded(MANY * 3))
    with in_one_look():
        redact(" ".join(f"password=a1b2c3d4{n}" for n in range(MANY // 4)))
    with in_one_look():
        redact("password=a1b2c3d4 " + "[redacted: " * (MANY))
    mixed = [*ENDLESS.values(), " ", "\n", "x7Kq9", "=", '"']
    with in_one_look():
        redact("".join(DRAWN.choices(mixed, k=MANY // 2))[: 4 * MANY])
